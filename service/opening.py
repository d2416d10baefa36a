"""A version opened as the settings ask: on which device, in which form, and giving the vectors it should."""

from models.encoder import Encoder
from models.engines.form import FP32
from models.engines.nvidia import require_cuda
from models.errors import DeviceUnavailable
from models.proof import check_golden
from models.store import Store
from service.settings import Settings, StartupError


def open_version(store: Store, version: str, settings: Settings, *, first: bool = False) -> Encoder:
    """The version, every byte of it verified.

    first: it has not served here before. Then, and in every other form than the one it was proved in, its
        golden texts are computed again.

    Raises:
        ModelError: it is damaged, cannot be had in this form, or gives other vectors than it should.

    """
    encoder = store.open(version, form=settings.form, place=settings.place)
    if first or encoder.form != FP32:
        check_golden(encoder, store.folder(version))
    return encoder


def require_device(settings: Settings) -> str:
    """What computes, in words. Raise StartupError when what the settings name is not there."""
    place = settings.place
    if place.device == "cpu":
        return "cpu"
    try:
        return f"{place}: {require_cuda(place)}"
    except DeviceUnavailable as error:
        raise StartupError(str(error)) from error
