"""What is aimed at, of all that was wished."""

import pytest

from models.store import DesiredVersion, Kind
from service.lifecycle.controller import next_target


@pytest.mark.parametrize(
    ("what", "kind", "handled", "judged", "refused", "chosen"),
    [
        ("a mere wish", "want", None, False, False, True),
        ("a mere wish for a version that failed or was rolled back from", "want", None, True, False, False),
        ("a mere wish for a version that its gate refused", "want", None, False, True, False),
        ("a decision for a version that failed", "activate", "another", True, False, True),
        ("a decision for a version that its gate refused", "activate", None, False, True, True),
        ("a decision that was carried out before and failed", "activate", "this", True, False, False),
        ("a rollback", "rollback", None, False, False, True),
        ("a rollback that failed", "rollback", "this", True, False, False),
        ("a decision that was carried out before", "activate", "this", False, False, True),
    ],
)  # fmt: skip
def test_a_version_in_disgrace_needs_a_decision_and_each_decision_counts_once(
    what: str, kind: Kind, handled: str | None, judged: bool, refused: bool, chosen: bool
) -> None:
    desired = DesiredVersion("v2", kind, "this")
    judged_versions = {"v2"} if judged else set()
    found = next_target(desired, live="v1", handled=handled, judged=judged_versions, refused=refused)
    assert (found is not None and found.version == "v2") is chosen, what


def test_a_decision_that_was_carried_out_is_only_a_wish_when_it_comes_again() -> None:
    found = next_target(
        DesiredVersion("v2", "rollback", "this"), live="v3", handled="this", judged=(), refused=False
    )
    assert found == DesiredVersion("v2", "want", "this"), (
        "or the version that came after would be judged by it"
    )


def test_nothing_is_aimed_at_when_nothing_or_the_live_version_is_wanted() -> None:
    assert next_target(None, live="v1", handled=None, judged=(), refused=False) is None
    assert (
        next_target(DesiredVersion("v1", "activate", "x"), live="v1", handled=None, judged=(), refused=False)
        is None
    )
