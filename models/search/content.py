"""A document's title and text, which are searched as one."""

from typing import NamedTuple


class Content(NamedTuple):
    """A text, and its title where there is one."""

    text: str
    title: str = ""

    @property
    def lead(self) -> str:
        """Characters in front of the text: the title without white space around it, and a line break."""
        return f"{self.title.strip()}\n" if self.title else ""

    @property
    def whole(self) -> str:
        """Title, line break and text, as they are embedded and indexed by their words."""
        return self.lead + self.text
