"""The other forms that this machine may compute."""

from __future__ import annotations

import pytest

from models.engines.opening import BF16, has_int8, require
from models.errors import FormUnavailable


def _why_no_bf16() -> str:
    try:
        require(BF16)
    except FormUnavailable as error:
        return str(error)
    return ""


needs_bf16 = pytest.mark.skipif(bool(_why_no_bf16()), reason=_why_no_bf16() or "bf16 can be computed here")
needs_int8 = pytest.mark.skipif(not has_int8(), reason="this processor has no VNNI instructions")
