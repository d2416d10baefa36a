"""A document's title and text, which are searched together."""

from typing import NamedTuple


class Content(NamedTuple):
    """A text with an optional title."""

    text: str
    title: str = ""

    @property
    def lead(self) -> str:
        """The text's prefix: the stripped title and a line break, or nothing."""
        return f"{self.title.strip()}\n" if self.title else ""

    @property
    def whole(self) -> str:
        """Title, line break and text, as they are embedded and indexed."""
        return self.lead + self.text
