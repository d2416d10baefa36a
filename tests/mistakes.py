"""Checks the form of error messages for typical mistakes."""

FOREIGN = (
    "Traceback",
    "pydantic",
    "Pydantic",
    "Input should",
    "Field required",
    "Extra inputs",
    "valid dictionary",
    "usage:",
    "invalid int value",
)


def plain(said: str) -> str:
    """Returns `said`. Fails unless it is one line of whole sentences without technical terms of libraries."""
    assert [word for word in FOREIGN if word in said] == []
    assert said.strip().count("\n") == 0, said
    assert said.rstrip().endswith((".", "?")), said
    return said
