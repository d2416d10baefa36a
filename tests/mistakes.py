"""The form that every refusal of a typical mistake has."""

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
    """`said`, which is one line of whole sentences, without the words of a library."""
    assert [word for word in FOREIGN if word in said] == []
    assert said.strip().count("\n") == 0, said
    assert said.rstrip().endswith((".", "?")), said
    return said
