"""A warning, given once, where the model cannot read the documents of an import."""

import sys

import orjson

from models.tokens.reading import ENOUGH, Count, count
from models.words.progress import Progress
from service.cli.commands.client import Remote
from service.cli.commands.delivery import Sent
from service.errors import CommandError

_DOCUMENTS, _CHARACTERS = 16, 500  # that are looked at, and of each


class Reading:
    """Says after the first documents when the model cannot read them."""

    def __init__(self, remote: Remote, progress: Progress) -> None:
        self._remote, self._progress = remote, progress
        self._looked = remote.scoped  # such an address has no route of the tokenizer
        self._count = Count()

    def look(self, chunk: Sent) -> None:
        if self._looked:
            return
        contents = [row.content for row, _ in chunk[:_DOCUMENTS] if isinstance(row.content, dict)]
        texts = [str(content.get("text"))[:_CHARACTERS] for content in contents]
        self._count += count(texts, self._tokenize)
        self._looked = self._count.words >= ENOUGH
        if self._looked and (reason := self._count.unreadable()):
            self._progress.end()
            print(  # noqa: T201  for whoever called
                f"The model cannot read these documents: {reason}. Search by words (mode=lexical), or teach "
                "it: `python -m training train adapt` (docs/RETRAINING.md).",
                file=sys.stderr,
            )

    def _tokenize(self, inputs: list[str]) -> list[list[int]]:
        """Ids of each text; of nothing where the service does not say, which is no fault of the import."""
        some = [text for text in inputs if text.strip()]  # the route takes no other
        body = orjson.dumps({"inputs": some, "add_special_tokens": False})
        try:
            answer = self._remote.send("POST", "/tokenize", body, "application/json")
        except CommandError:
            return [[] for _ in inputs]
        if answer.status != 200:
            return [[] for _ in inputs]
        found = iter(answer.value)
        return [[token["id"] for token in next(found)] if text.strip() else [] for text in inputs]
