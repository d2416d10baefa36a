"""The names of devices and precisions, as the settings have them."""

from importlib.metadata import PackageNotFoundError, version

from models.engines.form import Asked, cuda_form
from models.engines.place import place_of


def default_device() -> str:
    """`cuda` where the extra gpu is installed: who has that wants it used, or to be told why it is not."""
    try:
        version("onnxruntime-gpu")
    except PackageNotFoundError:
        return "cpu"
    return "cuda"


def check_device(device: str, precision: Asked) -> None:
    """Raise ValueError for a name that is none, or a precision that a GPU does not compute in."""
    try:
        on_gpu = place_of(device).device == "cuda"
    except ValueError as error:
        raise ValueError(f"SIMILE_DEVICE={device}: {error}.") from error
    if not on_gpu:
        return
    try:
        cuda_form(precision)
    except ValueError as error:
        raise ValueError(f"SIMILE_PRECISION={precision}: {error}.") from error
