"""Explains why a filter matched nothing, from a sample of the documents. Start reading at `explain`.

A field that no document has is not an error, because later documents may have the field. The response is 200
without hits, and its `warnings` are the sentences from this module.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from service.store.filters.grammar import RANGES, listed_in_words, shown

MAX_WARNINGS = 5
MAX_PATH = 512  # Characters of a sampled field.
MAX_FIELDS = 10_000  # Fields of a sample.
MAX_COMPARED = 500  # Fields that are compared with a mistyped one.
MAX_COMPARED_CHARACTERS = 64  # Characters of a compared field.
_CLOSE = 0.6  # The default cutoff of difflib.
_OBJECT = "objects"


@dataclass(slots=True)
class FieldSample:
    """The metadata fields of some documents in a collection.

    Attributes:
        documents: Number of documents that were read.
        complete: Whether the collection has no other documents.
        kinds: Each field of at most MAX_PATH characters, with the kinds of its values: texts, numbers and so
            on.
        truncated: Whether the documents have more than MAX_FIELDS fields. The other fields are left out.
    """

    documents: int = 0
    complete: bool = True
    kinds: dict[str, set[str]] = field(default_factory=dict)
    truncated: bool = False

    def add(self, metadata: dict[str, Any]) -> None:
        """Adds the fields of one document."""
        self.documents += 1
        inside: list[tuple[str, dict[str, Any]]] = [("", metadata)]
        while inside:
            place, value = inside.pop()
            for name, inner in value.items():
                if len(place) + len(name) > MAX_PATH:
                    continue
                path = place + name
                kinds = self._kinds_at(path)
                within = f"{path}."
                for member in inner if isinstance(inner, list) else [inner]:
                    kinds.add(_name_kinds(member))
                    if isinstance(member, dict):
                        inside.append((within, member))

    def _kinds_at(self, path: str) -> set[str]:
        if path not in self.kinds and len(self.kinds) >= MAX_FIELDS:
            self.truncated = True
            return set()
        return self.kinds.setdefault(path, set())


def explain(filter: dict[str, Any], sample: FieldSample) -> list[str]:
    """Returns at most MAX_WARNINGS sentences that explain why a valid filter matches nothing.

    Returns no sentences if the sample does not show a reason.
    """
    if not sample.documents:
        return []
    found: dict[str, None] = {}
    missing: set[str] = set()  # Fields that no document has. Each gets one sentence.
    for name, operations in _conditions(filter):
        if len(found) < MAX_WARNINGS and name not in missing:
            sentences = dict.fromkeys(_about(name, operations, sample))
            found |= sentences
            missing |= {name} if sentences and name not in sample.kinds else set()
    return [*found][:MAX_WARNINGS]


def _conditions(filter: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in filter.items():
        if name in ("$and", "$or"):
            for part in value:
                yield from _conditions(part)
        elif not name.startswith("$"):
            yield name, value if isinstance(value, dict) else {"equality": value}


def _about(name: str, operations: dict[str, Any], sample: FieldSample) -> Iterator[str]:
    looked_at = f"the {sample.documents:,} documents looked at"
    kinds = sample.kinds.get(name)
    if kinds is None:
        if sample.truncated or len(name) > MAX_PATH:  # The sample may have left it out.
            return
        if operations != {"$exists": False}:
            nobody = "No document" if sample.complete else f"None of {looked_at}"
            yield f"{nobody} has the field {shown(name)}.{_suggestion(name, sample)}"
        return
    if not kinds:  # All values are empty arrays.
        return
    held = listed_in_words(sorted(kinds)) if len(kinds) > 1 else next(iter(kinds))
    where = "" if sample.complete else f" in {looked_at}"
    for operator, operand in operations.items():
        operands = operand if operator == "$in" else [operand]
        needed = {_name_kinds(one) for one in operands}
        if operator not in ("equality", "$in", *RANGES) or not needed or needed & kinds:
            continue
        given = " or ".join(sorted({_SINGULAR[kind] for kind in needed}))
        does = "equals" if operator in ("equality", "$in") else f"is compared by {operator} with"
        within = (path for path in sample.kinds if path.startswith(f"{name}."))
        inside = next(within, None) if kinds == {_OBJECT} else None
        advice = f" Name a field inside, such as {shown(inside)}." if inside else ""
        yield f"The field {shown(name)} holds {held}{where}, and none of them {does} {given}.{advice}"


def _suggestion(name: str, sample: FieldSample) -> str:
    bare = name.removeprefix("metadata.")
    if bare != name and bare in sample.kinds:
        return f" Leave out 'metadata.': the field is {shown(bare)}."
    names = [*sample.kinds][:MAX_COMPARED]
    alike = next((one for one in names if one.casefold() == bare.casefold()), None)
    alike = alike or next((one for one in names if one.endswith(f".{bare}")), None)
    most = MAX_COMPARED_CHARACTERS
    short = [one for one in names if len(one) <= most] if len(bare) <= most else []
    close = [alike] if alike else get_close_matches(bare, short, 1, _CLOSE)
    return f" Did you mean {shown(close[0])}?" if close else ""


_SINGULAR = {"texts": "a text", "numbers": "a number", "true or false": "true or false", "null": "null"}


def _name_kinds(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "numbers"
    return "texts" if isinstance(value, str) else "arrays" if isinstance(value, Sequence) else _OBJECT
