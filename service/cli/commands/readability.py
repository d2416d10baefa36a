"""A warning, given once of each collection, where the model cannot read the documents of an import."""

import sys

import orjson

from models.progress import Progress
from models.tokens.reading import ENOUGH, Count, count
from service.cli.commands.client import Remote
from service.cli.commands.delivery import Sent
from service.errors import CommandError

_DOCUMENTS, _CHARACTERS = 16, 500  # that are looked at, and of each


class Reading:
    """Says after the first documents of each collection when the model cannot read them."""

    def __init__(self, remote: Remote, progress: Progress) -> None:
        self._remote, self._progress = remote, progress
        self._counts: dict[str | None, Count] = {}

    def look(self, collection: str | None, chunk: Sent) -> None:
        """collection: None is the one that the address names, or the default one."""
        known = self._counts.get(collection, Count())
        if known.words >= ENOUGH:
            return
        contents = [row.content for row, _ in chunk[:_DOCUMENTS] if isinstance(row.content, dict)]
        texts = [str(content.get("text"))[:_CHARACTERS] for content in contents]
        found = self._counts[collection] = known + count(texts, self._tokenize)
        if found.words >= ENOUGH and (reason := found.unreadable()):
            self._progress.end()
            what = "these documents" if collection is None else f"the documents of {collection}"
            print(  # noqa: T201  for whoever called
                f"The model cannot read {what}: {reason}. Search by words (mode=lexical), or teach "
                "it: `python -m training train adapt` (docs/RETRAINING.md).",
                file=sys.stderr,
            )

    def _tokenize(self, inputs: list[str]) -> list[list[int]]:
        """Ids of each text; of nothing where the service does not say, which is no fault of the import."""
        some = [text for text in inputs if text.strip()]  # the route takes no other
        body = orjson.dumps({"inputs": some, "add_special_tokens": False})
        try:
            answer = self._remote.send("POST", "/tokenize", body, "application/json", whole=True)
        except CommandError:
            return [[] for _ in inputs]
        if answer.status != 200:
            return [[] for _ in inputs]
        found = iter(answer.value)
        return [[token["id"] for token in next(found)] if text.strip() else [] for text in inputs]
