"""Kinds of values in a recipe. TOML says its types, so nothing is converted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

_MOST = 10**9  # no limit of meaning, but infinity is no number

AboveZero = Annotated[float, Field(gt=0, le=_MOST, strict=True)]
Rate = Annotated[float, Field(gt=0, le=1, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Weight = Annotated[float, Field(ge=0, le=_MOST, strict=True)]
Count = Annotated[int, Field(ge=1, le=1 << 20, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
