"""The fixture `place` for the tests of versions."""

from tests.parts.places import place

__all__ = ["place"]
