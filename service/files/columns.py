"""Builds documents from the columns of a table or from the fields of JSON lines.

Start at `Columns.document`.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.messages import did_you_mean
from models.search.content import derived_id
from service.files.values import BadFile, BadRow, Spelling, command_option
from service.store.filters.names import describe_fault, unreachable_names
from service.store.values import COLLECTION_NAME, NAME_RULE

Placed: TypeAlias = Literal["each", "one", "unsaid"]
IDS = ("id", "_id")  # BEIR's files have `_id`.
_TITLE = "title"
MAX_COLUMNS = 10_000
_COMPARED = 1000  # column names that are compared with a missing one
_EXPORTED = {"id", "title", "text", "metadata", "collection"}
_BETWEEN = "\n\n"  # blank line between several columns of a text
_RECENT = 1 << 12
_TOLD = 3


@dataclass(frozen=True, slots=True)
class Columns:
    """Choice of the columns that form a document.

    Attributes:
        id: Column of the id. None means `id` or `_id`, if the file has such a column. If the string is empty,
            ids are derived from the text.
        title: Column of the title. None means `title`, if the file has it. If the string is empty, documents
            have no title.
        text: Columns that form the text. Several values are joined by blank lines.
        metadata: Columns that become metadata. None means that an object named `metadata` is used, if
            present.
        all_metadata: Whether all other columns become metadata.
        placed: How the collection is chosen. `each` means that each line names a collection, `one` that all
            lines go to one collection, and `unsaid` that the user gave no option.
        spell: Returns the caller's spelling of an option, for messages.

    """

    id: str | None = None
    title: str | None = None
    text: tuple[str, ...] = ("text",)
    metadata: tuple[str, ...] | None = None
    all_metadata: bool = False
    placed: Placed = "one"
    spell: Spelling = command_option

    @property
    def named(self) -> tuple[str, ...]:
        return (*self.text, *filter(None, (self.id, self.title)), *(self.metadata or ()))

    def check(self, header: list[str]) -> None:
        """Checks the column names of a table.

        Raises:
            BadFile: The table has too many columns, a column is missing, a name occurs twice, or a column
                cannot be stored as metadata.

        """
        options = ", ".join(map(self.spell, ("text", "title", "id")))
        how = (
            "The first line of the file names its columns; "
            f"choose columns with {options} and {self.spell('metadata')}."
        )
        if len(header) > MAX_COLUMNS:
            raise BadFile(f"it has {len(header)} columns; at most {MAX_COLUMNS} are read.", 1)
        known = {*header}
        if missing := [name for name in self.named if name not in known]:
            reason = f"the column {missing[0]!r} is missing; the file has {', '.join(header)[:500]}."
            raise BadFile(f"{reason}{did_you_mean(missing[0], header[:_COMPARED])} {how}", 1)
        if twice := next(repeated(header), None):
            raise BadFile(f"two columns are named {twice[:80]!r}. Give each a name of its own.", 1)
        if self.all_metadata and "" in header:
            raise BadFile(
                f"column {header.index('') + 1} has no name, so it cannot be stored as metadata. "
                f"Name it, or choose the columns to store ({self.spell('metadata')}).",
                1,
            )
        stored = self.stored(header)
        for number, name in enumerate(header, 1):
            if name in stored and next(unreachable_names({name: ""}), None) is not None:
                raise BadFile(
                    f"column {number}, {name[:80]!r}, cannot be metadata: {describe_fault(name)}. Rename it, "
                    f"or choose the columns to store ({self.spell('metadata')}).",
                    1,
                )

    def stored(self, header: list[str]) -> set[str]:
        """Returns the names of the columns that become metadata."""
        if not self.all_metadata:
            return {*header}.intersection(self.metadata or ())
        title = _TITLE if self.title is None else self.title
        return {*header} - {self._id_column(dict.fromkeys(header)), *self.text, title}

    def document(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Builds a document from the values of a row, by column name.

        Raises:
            BadRow: A chosen field is missing or has the wrong type, an id is empty, or a collection's name is
                invalid.

        """
        for name in self.text:
            if name not in fields:
                names = ", ".join(sorted(map(str, fields))[:20]) or "none"
                raise BadRow(
                    f"the field {name!r} for the text ({self.spell('text')}) is missing; others are: {names}."
                    f"{did_you_mean(name, map(str, islice(fields, _COMPARED)))}".removesuffix(".")
                )
        found: dict[str, Any] = {"text": self._text(fields), "metadata": self._metadata(fields)}
        if title := self._title(fields):
            found["title"] = title
            if found["text"] == "":  # Only the title can be searched then.
                found["text"] = found.pop("title")
        column = self._id_column(fields)
        if column and (id := fields.get(column)) is not None and id != "":
            found["id"] = _as_text(id)
        elif self.id:
            raise BadRow(f"{self.id!r} has no id ({self.spell('id')})")
        if self.placed == "each":
            found["collection"] = self._collection(fields)
        return found

    def _id_column(self, fields: dict[str, Any]) -> str:
        if self.id is not None:
            return self.id
        return next((name for name in IDS if name in fields), IDS[0])

    def _text(self, fields: dict[str, Any]) -> Any:
        if len(self.text) == 1:
            return fields[self.text[0]]
        parts = []
        for name in self.text:
            part = _as_text(fields[name])
            if not isinstance(part, str | None):
                raise BadRow(f"{name!r} is not a text ({self.spell('text')})")
            if part and not part.isspace():
                parts.append(part)
        return _BETWEEN.join(parts)

    def _title(self, fields: dict[str, Any]) -> str | None:
        """Returns the title of a document.

        If no title column was chosen, a field `title` is ignored if it is not a text, or is the text itself.

        Raises:
            BadRow: The chosen column is missing or is not a text.

        """
        if self.title == "":
            return None
        title = _as_text(fields.get(self.title or _TITLE))
        if self.title is None:
            return title if isinstance(title, str) and _TITLE not in self.text else None
        if self.title not in fields:
            raise BadRow(f"the field {self.title!r} for the title ({self.spell('title')}) is missing")
        if not isinstance(title, str | None):
            raise BadRow(f"{self.title!r} is not a text ({self.spell('title')})")
        return title

    def _collection(self, fields: dict[str, Any]) -> str:
        name = fields.get("collection")
        if not isinstance(name, str) or not COLLECTION_NAME.fullmatch(name):
            raise BadRow(f"'collection' is not the name of a collection (--all-collections). {NAME_RULE}")
        return name

    def refuse_unsaid(self, fields: dict[str, Any]) -> None:
        """Rejects a line that names a collection, if the user did not say what to do with collections.

        Such a file is an export of several collections, in which equal ids would collide.

        Raises:
            BadRow: The line names a collection.

        """
        exported = fields.keys() <= _EXPORTED  # Lines of other files may have metadata of this name.
        taken = "collection" in self.named or (self.all_metadata and not exported)
        if self.placed == "unsaid" and not taken and isinstance(fields.get("collection"), str):
            name = fields["collection"][:64]
            if self.spell is command_option:
                how = "--all-collections puts it there, --collection NAME puts every line into one"
            else:
                how = f"send it to /collections/{name}/files, or leave the field out"
            raise BadRow(f"it belongs to the collection {name!r}: {how}")

    def _metadata(self, fields: dict[str, Any]) -> Any:
        if self.all_metadata:
            taken = {self._id_column(fields), *self.text}
            if self._title(fields) is not None:
                taken.add(self.title or _TITLE)
            if self.placed == "each":
                taken.add("collection")
            return merge_metadata({name: value for name, value in fields.items() if name not in taken})
        if self.metadata is None:
            given = fields.get("metadata")
            return {} if given is None else given
        if missing := [name for name in self.metadata if name not in fields]:
            raise BadRow(f"the field {missing[0]!r} for the metadata ({self.spell('metadata')}) is missing")
        return {name: fields[name] for name in self.metadata}


def merge_metadata(fields: dict[str, Any]) -> dict[str, Any]:
    """Merges the object `metadata` of a row with the other fields of the row.

    Raises:
        BadRow: A name occurs in both.

    """
    inner = fields.get("metadata")
    if not isinstance(inner, dict):
        return fields
    others = {name: value for name, value in fields.items() if name != "metadata"}
    if twice := [name for name in inner if name in others]:
        raise BadRow(f"{twice[0]!r} is a field of the line and of its metadata. Rename one of the two")
    return others | inner


def repeated(header: list[str]) -> Iterator[str]:
    return (name for name, times in Counter(header).items() if name and times > 1)


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Seen:
    """Counts distinct document ids, and remembers the first ids that occur more than once.

    Ids are compared by 64-bit hashes. About one in 300,000 imports of 10 million ids has a collision.
    """

    def __init__(self) -> None:
        self.distinct = 0
        self._repeated: dict[str, int] = {}  # counts of the first repeated ids
        self._others = False  # Other ids were repeated as well.
        self._recent: set[int] = set()
        self._sorted: list[NDArray[np.uint64]] = []  # Each array is at least twice as long as the next.

    def add(self, id: str, title: str, text: str, within: str = "") -> None:
        """Counts a document. `within` is the collection, if the import has several collections."""
        named = f"{within}\0{id}".encode("utf-8", "surrogatepass")
        key = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest())
        if key in self._recent or any(_holds(part, key) for part in self._sorted):
            derived = id == derived_id(title, text)
            label = f"the text {text[:40]!r}" if derived else f"id {id[:80]}"
            if label in self._repeated or len(self._repeated) < _TOLD:
                self._repeated[label] = self._repeated.get(label, 1) + 1
            else:
                self._others = True
            return
        self.distinct += 1
        self._recent.add(key)
        if len(self._recent) >= _RECENT:
            self._merge()

    def _merge(self) -> None:
        part = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
        self._recent.clear()
        while self._sorted and len(self._sorted[-1]) <= 2 * len(part):
            part = np.sort(np.concatenate((self._sorted.pop(), part)))
        self._sorted.append(part)

    def sentence(self) -> str:
        """Returns a phrase about repeated ids, such as `id 1003 came twice`.

        It is empty if no id was repeated.
        """
        parts = [
            f"{label} came twice" if times == 2 else f"{label} came {times} times"
            for label, times in self._repeated.items()
        ]
        return ", ".join([*parts, "and others more than once"] if self._others else parts)


def _holds(part: NDArray[np.uint64], key: int) -> bool:
    at = int(np.searchsorted(part, np.uint64(key)))
    return at < len(part) and int(part[at]) == key
