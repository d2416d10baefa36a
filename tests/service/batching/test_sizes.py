"""What is batched for a processor, and what for a GPU."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.encoder import Encoder
from models.engines.form import FP32, Form
from models.engines.opening import INT8
from models.engines.place import CPU, Place
from service.batching.planner import GPU, PROCESSOR, Sizes, group_of_oldest, sizes_on
from service.batching.request import EmbedCall, Item, Lane
from service.batching.scheduler import Scheduler

ENCODER = cast("Encoder", SimpleNamespace(packs=False, max_length=64, form=FP32, step=1))


def batch(sizes: Sizes, lengths: list[int], lane: Lane = Lane.INTERACTIVE, recent: bool = False) -> list[int]:
    """The lengths of the first batch of texts of `lengths` tokens; `recent`: beside interactive work."""
    unused: Any = None
    scheduler = Scheduler(sizes=sizes)
    if recent:
        scheduler.put(
            EmbedCall(ENCODER, Lane.INTERACTIVE, True, False, True, unused, unused, [], [], 0, 0.0), []
        )
    call = EmbedCall(ENCODER, lane, True, False, True, unused, unused, [], [], len(lengths), 0.0)
    scheduler.put(call, [Item(call, "x", length, [(call, at)]) for at, length in enumerate(lengths)])
    while (job := scheduler.next_job()) is not None and not job.embed:
        for item in job.items:
            item.ids = [1] * item.cost
        scheduler.tokenized(job)
    assert job is not None
    return sorted(len(item.ids) for item in job.items)


def test_a_gpu_is_given_larger_batches_of_more_texts() -> None:
    assert (sizes_on(CPU), sizes_on(Place("cuda", 1))) == (PROCESSOR, GPU)
    assert len(batch(PROCESSOR, [30] * 1000)) == 17
    assert len(batch(GPU, [30] * 1000)) == 256
    assert len(batch(GPU._replace(window=1000), [30] * 1000)) == 512, "16,384 tokens in rows of 32"


@pytest.mark.parametrize(("sizes", "texts"), [(PROCESSOR, 8), (GPU, 128)])
def test_a_background_batch_is_small_while_interactive_work_is_recent(sizes: Sizes, texts: int) -> None:
    sizes = sizes._replace(window=1000)
    assert len(batch(sizes, [32] * 1000, Lane.BACKGROUND, recent=True)) == texts
    assert len(batch(sizes, [32] * 1000, Lane.BACKGROUND)) > texts


def test_what_a_gpu_computes_at_one_length_is_not_kept_apart() -> None:
    """9 and 16 tokens are both computed as 16 there."""
    assert batch(PROCESSOR._replace(overhead_tokens=1), [9, 16, 9, 16]) == [9, 9]
    assert batch(GPU._replace(overhead_tokens=1), [9, 16, 9, 16, 17]) == [9, 9, 16, 16]
    assert [GPU.length(tokens, 60) for tokens in (1, 8, 9, 59)] == [8, 8, 16, 60]
    assert PROCESSOR.length(9, 60) == 9


def test_int8_counts_attention_by_what_its_own_tokens_cost() -> None:
    """Its linear layers are cheap and its attention is that of fp32, so a longer text costs others more."""
    lengths = [12] * 12 + [44]

    def first(form: Form) -> int:
        encoder = cast("Encoder", SimpleNamespace(packs=True, form=form, step=1))
        return len(group_of_oldest(lengths, 512, PROCESSOR.costs(encoder)))

    assert (first(FP32), first(INT8)) == (13, 12)
