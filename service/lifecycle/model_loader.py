"""Opens versions in one form, and waits for a models folder that cannot be read."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from models.encoder import Encoder
from models.engines.form import CPU, FP32, Form, Place
from models.engines.nvidia import require_cuda
from models.engines.opening import form_for
from models.errors import (
    Damaged,
    DeviceUnavailable,
    FormUnavailable,
    ProofFailed,
    UnknownVersion,
    Unreadable,
)
from models.manifest import read_manifest
from models.publishing.proof import check_golden
from models.store import Store
from service.batching.workers import Layout
from service.errors import StartupError, machine_error
from service.settings import PREFIX, Settings

log = logging.getLogger(__name__)

T = TypeVar("T")
AWAY = (Unreadable, UnknownVersion, OSError)
RETRY_SECONDS, MOST_SECONDS = 2.0, 30.0


def wanted_form(settings: Settings) -> Form:
    """The form in which every version is to be served.

    Raises:
        StartupError: this machine cannot compute it.

    """
    try:
        return form_for(settings.precision, settings.place)
    except FormUnavailable as error:
        raise StartupError(f"{PREFIX}PRECISION={settings.precision}: {error}") from error


def require_device(settings: Settings) -> str:
    """The device that computes, in words.

    Raises:
        StartupError: the GPU that the settings name is not there.

    """
    place = settings.place
    if place.device == "cpu":
        return "cpu"
    try:
        return f"{place}: {require_cuda(place)}"
    except DeviceUnavailable as error:
        raise StartupError(str(error)) from error


def stored_form(encoder: Encoder) -> str:
    """A name for what decides a document's vectors besides the fingerprint: the form, and its passages."""
    lengths = {
        collection: learned.passage_tokens
        for collection, learned in sorted(encoder.manifest.search.items())
        if learned.passage_tokens
    }
    return f"{encoder.form} {lengths}" if lengths else str(encoder.form)


def loss_of(encoder: Encoder) -> float:
    """1 - the mean cosine to the vectors of fp32, over the golden texts; of a pair the larger one.

    0 in fp32, and until the golden texts were computed (proof.py).
    """
    own = 0.0 if encoder.turned is None else 1 - encoder.turned.mean
    return own if encoder.queries is None else max(own, loss_of(encoder.queries))


class ModelLoader:
    """Opens versions of `store` in `form`, unless told another one, with every byte verified.

    With `most_loss` a version that `form` cannot compute, or with a larger `loss_of`, is opened in fp32.
    """

    def __init__(
        self, store: Store, form: Form, layout: Layout, *, deterministic: bool = False, place: Place = CPU
    ) -> None:
        """layout: of the workers that will compute.

        place: which GPU, for a form of one.
        """
        self.store = store
        self.form = form
        self.most_loss: float | None = None
        self.layout = layout
        self._in_fp32 = set[str]()  # versions that `form` is not for
        self._deterministic = deterministic
        self._place = place

    @property
    def opens_alone(self) -> bool:
        """True when a version can be opened once more for lone texts (single_text.py)."""
        return self.form.runtime == "onnxruntime" and not self._deterministic

    def form_of(self, version: str) -> Form:
        """The form to serve a version in."""
        return FP32 if version in self._in_fp32 else self.form

    def open(self, version: str, form: Form | None = None) -> Encoder:
        """Open a version for a start: one that was served before.

        Raises:
            ModelError: it cannot be served, or not in this form.

        """
        return self._open_in(form, version) if form else self._by_loss(version, self._open_in)

    def open_proved(self, version: str) -> Encoder:
        """Open a version for a swap: its published vectors are computed again, as nearly as its form can.

        Raises:
            ModelError: as above, or they do not.

        """
        return self._by_loss(version, lambda form, version: self._proved(self._opened(version, form)))

    def _by_loss(self, version: str, opened: Callable[[Form, str], Encoder]) -> Encoder:
        form = self.form_of(version)
        if self.most_loss is None or form == FP32:
            return opened(form, version)
        try:
            encoder = opened(form, version)
            if (loss := loss_of(encoder)) <= self.most_loss:
                return encoder
            encoder.close()
            why = f"it loses {loss:.5f}, above {self.most_loss:g}"
        except (FormUnavailable, ProofFailed) as error:
            why = str(error)
        encoder = opened(FP32, version)
        log.warning("SIMILE_PRECISION=auto serves %s in fp32, not in %s: %s", version, form, why)
        self._in_fp32.add(version)
        return encoder

    def _open_in(self, form: Form, version: str) -> Encoder:
        # In the form of the proof the bytes are enough; what another gives depends on the machine, too.
        encoder = self._opened(version, form)
        return encoder if encoder.form == FP32 else self._proved(encoder)

    def _opened(self, version: str, form: Form) -> Encoder:
        return self.store.open(
            version,
            self.layout.threads,
            form=form,
            callers=self.layout.workers,
            deterministic=self._deterministic,
            place=self._place,
        )

    def _proved(self, encoder: Encoder) -> Encoder:
        check_golden(encoder, self.store.folder(encoder.manifest.version))
        return encoder


async def read_when_there(
    store: Store, version: str, work: Callable[[], T], wait: Callable[[str, float], Awaitable[None]]
) -> T:
    """Returns the result of `work` on the folder of `version`, and repeats it while the folder cannot be
    read.

    A network mount that is gone, or a missing right, is no damage.

    Args:
        store: Of the version.
        version: Its folder is read.
        work: Runs on another thread.
        wait: Is told why, and for how many seconds to wait.

    Raises:
        Exception: `work` raised it while the folder could be read.

    """
    pause = RETRY_SECONDS
    while True:
        try:
            return await asyncio.to_thread(work)
        except AWAY as error:
            fault = machine_error(error)
            reason = str(error) if fault is None else fault.message
        except Damaged:
            raise
        except Exception:  # Perhaps of a runtime, which has its own error for a missing file.
            away = await asyncio.to_thread(_away, store, version)
            if away is None:
                raise
            reason = str(away)
        await wait(f"{reason.rstrip('.')}; it is tried again", pause)
        pause = min(2 * pause, MOST_SECONDS)


def _away(store: Store, version: str) -> Exception | None:
    """Returns why the folder cannot be read now, or None if it can."""
    try:
        read_manifest(store.folder(version))
    except AWAY as error:
        return error
    except Damaged:
        return None
    return None
