"""The version to work towards, of what is wanted and what is known."""

from collections.abc import Container

from models.errors import ModelError, Unreadable
from models.seal import read_manifest
from models.store import DesiredVersion, Store


def next_target(
    desired: DesiredVersion | None,
    *,
    live: str,
    handled: str | None,
    judged: Container[str],
    refused: bool,
) -> DesiredVersion | None:
    """The wish to carry out, None when there is nothing to do.

    Args:
        live: the version in service.
        handled: the id of the last wish that was carried out or failed. Its repetition is a mere wish.
        judged: versions that failed or were rolled back from.
        refused: whether a promotion gate refused the version.

    A version that was judged or refused is chosen only by an express decision, and each decision
    counts once.

    """
    if desired is None or desired.version == live:
        return None
    if desired.kind != "want" and desired.id == handled:
        desired = desired._replace(kind="want")
    if desired.kind == "want" and (desired.version in judged or refused):
        return None
    return desired


def was_refused(store: Store, version: str) -> bool:
    """True when a promotion gate refused it. A manifest that is damaged is the swap's matter.

    Raises:
        OSError: it cannot be read now.

    """
    try:
        gate = read_manifest(store.folder(version)).gate
    except Unreadable as error:
        raise OSError(str(error)) from error
    except ModelError:
        return False
    return gate is not None and gate.verdict == "refused"
