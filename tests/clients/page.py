"""Parses docs/CLIENTS.md: its Python blocks by heading, its curl commands and its table of versions."""

import re
from typing import Any

from tests.clients.running import WRITER, Running
from tests.parts.served import ROOT

PAGE = ROOT / "docs" / "CLIENTS.md"
ADDRESS = "http://127.0.0.1:8000"
WRITING = {"A LangChain vector store", "A LlamaIndex vector store", "A Haystack document store"}


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def snippets() -> dict[str, str]:
    """Returns {heading: Python block}. Fails if a heading has several blocks."""
    found: dict[str, str] = {}
    for section in re.split(r"^#+ ", text(), flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
        assert len(blocks) <= 1, f"{heading}: give the second block a heading of its own"
        found |= dict.fromkeys([heading] * len(blocks), "".join(blocks))
    return found


def curls() -> list[str]:
    """Returns the curl commands of the shell blocks, with all their lines."""
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text(), flags=re.DOTALL | re.MULTILINE))
    parts = re.split(r"^(?=curl )", blocks, flags=re.MULTILINE)
    return [part.strip() for part in parts if part.startswith("curl ")]


def versions() -> dict[str, str]:
    """Returns {package: version} of the page's tables."""
    return dict(re.findall(r"\| `([a-z_-]+)` (\d[0-9.]+)(?= \|)", text()))


def here(source: str, service: Running, key: str | None = None) -> str:
    """Returns `source` with the service's address and a key instead of the page's."""
    return re.sub(r"\bKEY\b", key or service.key, source.replace(ADDRESS, service.url))


def run(heading: str, service: Running) -> dict[str, Any]:
    """Run the block of `heading` against `service`, and return the names that it defines."""
    names: dict[str, Any] = {"__name__": "snippet"}
    lines_before = text().partition(snippets()[heading])[0].count("\n")
    # The empty lines give a traceback the line numbers of the page.
    source = "\n" * lines_before + here(snippets()[heading], service, WRITER if heading in WRITING else None)
    exec(compile(source, str(PAGE), "exec"), names)
    return names
