"""The cache returns correct vectors, stays within its limit, and keeps repeated texts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.encoder import Encoder
from service.batching.cache import ENTRY_BYTES, Cache
from service.batching.request import EmbedCall, Item, Lane, Source
from service.observability.metrics import Metrics
from tests.service.fakes import CountingEncoder
from tests.waiting import LIMIT

VECTOR = np.zeros(8, np.float32).tobytes()
ONE = sys.getsizeof(VECTOR) + ENTRY_BYTES  # bytes of an entry
OPTIONS = st.tuples(st.booleans(), st.booleans(), st.booleans())
TEXTS = st.sampled_from(["red", "Red", "river", "a river", "the river", "stone"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "compute", "close"]), st.integers(0, 1), TEXTS, OPTIONS), max_size=60
)


def call_of(encoder: Encoder, normalize: bool = True, truncate: bool = True, left: bool = False) -> EmbedCall:
    unused: Any = None
    return EmbedCall(
        encoder, Lane.INTERACTIVE, truncate, left, normalize, unused, unused, [], [], missing=0, arrived=0.0
    )


def key_of(cache: Cache, call: EmbedCall, source: Source) -> bytes:
    [key] = cache.space(call.encoder).text_keys(call, [source])
    assert key is not None
    return key


def put(cache: Cache, call: EmbedCall, text: str, vector: bytes = VECTOR) -> None:
    cache.keep(Item(call, text, 1, [], key_of(cache, call, text), ids=[1] * len(text)), vector)


def has(cache: Cache, call: EmbedCall, text: str) -> bool:
    """Returns whether the cache has a text. Unlike a request, this does not count as a use."""
    key = key_of(cache, call, text)
    return key in cache._probation or key in cache._protected


def ask(cache: Cache, call: EmbedCall, text: str) -> None:
    assert cache.find(key_of(cache, call, text)) is not None


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, room=st.integers(1, 8))
def test_what_is_found_is_what_was_computed_and_the_room_is_never_exceeded(
    steps: list[tuple[str, int, str, tuple[bool, bool, bool]]], room: int
) -> None:
    cache = Cache(room * ONE, Metrics())
    encoders = [CountingEncoder(at).as_encoder() for at in range(2)]
    names = [0, 1]  # A closed encoder is replaced by one with a new name.
    computed: dict[tuple[object, ...], bytes] = {}
    for step, which, text, options in steps:
        call = call_of(encoders[which], *options)
        name = (names[which], text, options)
        if step == "ask":
            entry = cache.find(key_of(cache, call, text))
            if entry is not None:
                assert (entry.vector, entry.tokens) == (computed[name], len(text))
        elif step == "compute":
            computed.setdefault(name, np.full(8, len(computed), np.float32).tobytes())
            put(cache, call, text, computed[name])
        else:
            cache.forget(call.encoder)
            names[which] += 2
            encoders[which] = CountingEncoder(names[which]).as_encoder()
        everyone = [*cache._probation.values(), *cache._protected.values()]
        assert cache.nbytes == sum(entry.nbytes for entry in everyone) <= cache.limit_bytes
        assert cache._protected_bytes == sum(entry.nbytes for entry in cache._protected.values())


def test_the_latest_is_there_and_the_one_that_was_not_asked_for_longest_left() -> None:
    metrics, call = Metrics(), call_of(CountingEncoder().as_encoder())
    cache = Cache(5 * ONE, metrics)
    for at in range(8):
        put(cache, call, f"text {at}")
    assert [has(cache, call, f"text {at}") for at in range(8)] == [False] * 3 + [True] * 5
    assert metrics.registry.get_sample_value("simile_cache_evictions_total") == 3
    assert metrics.registry.get_sample_value("simile_cache_bytes") == cache.nbytes == 5 * ONE


def test_what_was_asked_for_again_outlives_a_corpus_that_comes_once() -> None:
    call = call_of(CountingEncoder().as_encoder())
    cache = Cache(10 * ONE, Metrics())
    for at in range(5):
        put(cache, call, f"often {at}")
        ask(cache, call, f"often {at}")
    for at in range(1000):
        put(cache, call, f"once {at}")
    assert all(has(cache, call, f"often {at}") for at in range(5))
    assert len(cache) == 10


def test_what_stays_leaves_room_for_what_is_new() -> None:
    """Without this room, a new text would be removed before its second request."""
    call = call_of(CountingEncoder().as_encoder())
    cache = Cache(10 * ONE, Metrics())
    for at in range(30):
        put(cache, call, f"text {at}")
        ask(cache, call, f"text {at}")
    put(cache, call, "new 1")
    put(cache, call, "new 2")
    assert has(cache, call, "new 1")
    assert has(cache, call, "new 2")
    assert has(cache, call, "text 29")


def test_a_key_is_of_the_text_the_encoder_and_every_option_that_changes_the_vector() -> None:
    cache = Cache(100 * ONE, Metrics())
    encoders = [CountingEncoder(at).as_encoder() for at in range(2)]
    options = [{}, {"normalize": False}, {"truncate": False}, {"left": True}]
    calls = [call_of(encoder, **chosen) for encoder in encoders for chosen in options]
    sources: list[Source] = ["1", [1], "[1]", "half \ud800 a pair", "half \udbff a pair"]
    keys = [key_of(cache, call, source) for call in calls for source in sources]
    assert len(set(keys)) == len(keys)
    assert keys == [key_of(cache, call, source) for call in calls for source in sources]


def test_a_text_that_is_far_longer_than_any_that_fits_is_not_looked_up() -> None:
    call = call_of(CountingEncoder().as_encoder())
    space = Cache(100 * ONE, Metrics()).space(call.encoder)
    keys = space.text_keys(call, ["x" * 4096, "x" * 4097])
    assert [key is None for key in keys] == [False, True]


def test_a_closed_encoders_vectors_go_and_the_others_stay() -> None:
    cache = Cache(4000 * ONE, Metrics())
    old, new = (call_of(CountingEncoder(at).as_encoder()) for at in (1, 2))
    for call in (old, new):
        for at in range(1000):
            put(cache, call, f"text {at}")
        for at in range(0, 1000, 2):
            ask(cache, call, f"text {at}")
    late = Item(old, "late", 1, [], key_of(cache, old, "late"), ids=[1])
    cache.forget(old.encoder)
    cache.keep(late, VECTOR)  # The batch began before the encoder closed.
    assert all(has(cache, new, f"text {at}") for at in range(1000))
    assert (len(cache), cache.nbytes) == (1000, 1000 * ONE)
    cache.forget(new.encoder)
    assert (len(cache), cache.nbytes, cache._protected_bytes) == (0, 0, 0)


FILL = """
import numpy as np
from service.batching.cache import Cache
from service.batching.request import Item
from service.observability.metrics import Metrics
from tests.service.batching.test_cache import call_of, key_of
from tests.service.fakes import CountingEncoder

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

call, limit, before = call_of(CountingEncoder().as_encoder()), 64 * 2**20, resident()
cache = Cache(limit, Metrics())
for at in range(60_000):
    key = key_of(cache, call, f"text {at}")
    cache.keep(Item(call, "", 1, [], key, ids=[at, 1]), np.full(384, at, np.float32).tobytes())
    cache.find(key)
print((resident() - before) / limit, cache.nbytes / limit)
"""


def test_a_full_cache_takes_the_memory_that_it_says() -> None:
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", FILL], cwd=root, capture_output=True, text=True, check=True, timeout=LIMIT
    )
    resident, counted = map(float, run.stdout.split())
    assert 0.99 < counted <= 1
    assert 0.85 < resident < 1.1, f"{resident:.2f} of the room"
