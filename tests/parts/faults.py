"""Faults for `monkeypatch.setattr`."""


def broken(*_: object, **__: object) -> None:
    """Fails as a bug would."""
    raise RuntimeError("injected")
