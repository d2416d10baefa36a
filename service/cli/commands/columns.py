"""The columns of a file, or fields of its JSON lines, that make a document."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from service.store.values import COLLECTION_NAME

Placed: TypeAlias = Literal["each", "one", "unsaid"]
_IDS = ("id", "_id")  # the second is what BEIR's files have
_TITLE = "title"
_BETWEEN = "\n\n"  # of several columns that make a text: a blank line


class BadRow(Exception):
    """A line that holds no document."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The fields that make a document."""

    id: str | None = None  # None: `id` or `_id` where there is one
    title: str | None = None  # None: `title` where there is one; empty: none
    text: tuple[str, ...] = ("text",)
    metadata: tuple[str, ...] | None = None  # None: an object named `metadata`, where there is one
    all_metadata: bool = False  # every field that is neither id, title nor text
    # Collections: each line names its own, all lines go to one that was named, or nothing was said of them.
    placed: Placed = "one"

    @property
    def named(self) -> tuple[str, ...]:
        """Columns that a table must have."""
        return (*self.text, *filter(None, (self.id, self.title)), *(self.metadata or ()))

    def document(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Raise BadRow when a field that was named is missing."""
        for name in self.text:
            if name not in fields:
                there = ", ".join(sorted(map(str, fields))[:20]) or "none"
                raise BadRow(f"there is no field {name!r} for the text (--text); there are: {there}")
        found: dict[str, Any] = {"text": self._text(fields), "metadata": self._metadata(fields)}
        if title := self._title(fields):
            found["title"] = title
            if found["text"] == "":  # the title is all there is to find it by
                found["text"] = found.pop("title")
        if (id := fields.get(self._id_column(fields))) is not None and id != "":
            found["id"] = _as_text(id)
        elif self.id is not None:
            raise BadRow(f"there is no id in {self.id!r} (--id)")
        if self.placed == "each":
            found["collection"] = self._collection(fields)
        return found

    def _id_column(self, fields: dict[str, Any]) -> str:
        return self.id or next((name for name in _IDS if name in fields), _IDS[0])

    def _text(self, fields: dict[str, Any]) -> Any:
        """The one column as it came; several as one text, without those that are empty."""
        if len(self.text) == 1:
            return fields[self.text[0]]
        parts = []
        for name in self.text:
            part = _as_text(fields[name])
            if not isinstance(part, str | None):
                raise BadRow(f"{name!r} is no text (--text)")
            if part and not part.isspace():
                parts.append(part)
        return _BETWEEN.join(parts)

    def _title(self, fields: dict[str, Any]) -> str | None:
        """Without --title, a field `title` that holds something else than text is no title."""
        if self.title == "":
            return None
        title = _as_text(fields.get(self.title or _TITLE))
        if self.title is None:
            return title if isinstance(title, str) and _TITLE not in self.text else None
        if self.title not in fields:
            raise BadRow(f"there is no field {self.title!r} for the title (--title)")
        if not isinstance(title, str | None):
            raise BadRow(f"{self.title!r} is no text (--title)")
        return title

    def _collection(self, fields: dict[str, Any]) -> str:
        name = fields.get("collection")
        if not isinstance(name, str) or not COLLECTION_NAME.fullmatch(name):
            raise BadRow("there is no name of a collection in 'collection' (--all-collections)")
        return name

    def refuse_unsaid(self, fields: dict[str, Any]) -> None:
        """Raise BadRow for a line of an export of all collections, whose ids would replace each other."""
        taken = self.all_metadata or "collection" in self.named
        if self.placed == "unsaid" and not taken and isinstance(fields.get("collection"), str):
            raise BadRow(
                f"it is of the collection {fields['collection'][:64]!r}: --all-collections puts it there, "
                "--collection NAME puts every line into one"
            )

    def _metadata(self, fields: dict[str, Any]) -> Any:
        if self.all_metadata:
            taken = {self._id_column(fields), *self.text}
            if self._title(fields) is not None:
                taken.add(self.title or _TITLE)
            if self.placed == "each":
                taken.add("collection")
            return {name: value for name, value in fields.items() if name not in taken}
        if self.metadata is None:
            given = fields.get("metadata")
            return {} if given is None else given
        if missing := [name for name in self.metadata if name not in fields]:
            raise BadRow(f"there is no field {missing[0]!r} for the metadata (--metadata)")
        return {name: fields[name] for name in self.metadata}


def _as_text(value: Any) -> Any:
    """A whole number as text; anything else as it came."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
