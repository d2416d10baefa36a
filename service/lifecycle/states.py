"""A version's state as others read it."""

from typing import Any


def as_state(
    state: str,
    done: int | None = None,
    total: int | None = None,
    reason: str | None = None,
    *,
    eta_seconds: float | None = None,
) -> dict[str, Any]:
    """A version's state, as GET /models and state.json show it."""
    return {
        "state": state,
        "done": done,
        "total": total,
        "eta_seconds": eta_seconds,
        "reason": reason,
        "canary": None,
    }
