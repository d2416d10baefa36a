"""A document's title and text, which are searched together."""

import hashlib
from typing import NamedTuple


class Content(NamedTuple):
    """A text with an optional title."""

    text: str
    title: str = ""

    @property
    def lead(self) -> str:
        """The text before the body: the stripped title and a line break, or nothing without a title."""
        return f"{self.title.strip()}\n" if self.title else ""

    @property
    def whole(self) -> str:
        """The title, a line break and the text, which are embedded and indexed together."""
        return self.lead + self.text


def derived_id(title: str, text: str, salt: str = "") -> str:
    """Derives an id from the content of a document, so that the same content is stored only once per salt."""
    content = f"{title}\0{text}" if title or salt else text
    content = f"{salt}\0{content}" if salt else content
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]
