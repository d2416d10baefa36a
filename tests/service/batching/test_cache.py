"""Kept vectors: the right ones, within their room, and those that are asked for again."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from models.encoder import Encoder
from service.batching.cache import ENTRY_BYTES, SPELLING_BYTES, Cache, Computed
from service.batching.request import Source
from service.observability.metrics import Metrics
from tests.service.fakes import CountingEncoder

VECTOR = np.zeros(8, np.float32).tobytes()
ONE = sys.getsizeof(VECTOR) + ENTRY_BYTES + SPELLING_BYTES  # bytes of an entry with one spelling

TEXTS = st.sampled_from(["red", "Red", "river", "a river", "the river", "stone"])
IDS = {"red": [1], "Red": [1], "river": [2, 3], "a river": [3, 2], "the river": [2, 3], "stone": [4]}
STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "compute", "close"]), st.integers(0, 1), TEXTS, st.booleans()),
    max_size=60,
)


def vector_of(encoder: int, ids: list[int], normalize: bool) -> bytes:
    """What stands for the vector: no two of different encoders, ids or options are equal."""
    return np.array([encoder, normalize, *ids, *[0] * (6 - len(ids))], np.float32).tobytes()


def put(cache: Cache, encoder: Encoder, text: str, ids: list[int], vector: bytes = VECTOR) -> None:
    [spelling] = cache.names_of_texts(encoder, [text], True)
    name = cache.name_of_ids(encoder, ids, True)
    assert name is not None
    assert spelling is not None
    cache.keep(encoder, [Computed(name, vector, len(ids), (spelling,))])


def has(cache: Cache, encoder: Encoder, text: str) -> bool:
    """Without a trace: asking makes it stay."""
    [spelling] = cache.names_of_texts(encoder, [text], True)
    return spelling in cache._texts


def ask(cache: Cache, encoder: Encoder, text: str) -> None:
    assert cache.find_texts(cache.names_of_texts(encoder, [text], True)) != [None]


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, room=st.integers(1, 8))
def test_what_is_found_is_what_was_computed_and_the_room_is_never_exceeded(
    steps: list[tuple[str, int, str, bool]], room: int
) -> None:
    cache = Cache(room * ONE, Metrics())
    encoders = [CountingEncoder(at).as_encoder() for at in range(2)]
    names = [0, 1]  # an encoder that closed comes back as another
    known: set[tuple[int, tuple[int, ...], bool]] = set()
    for step, which, text, normalize in steps:
        encoder, ids = encoders[which], IDS[text]
        cache.open(encoder)
        vector = vector_of(names[which], ids, normalize)
        key = (names[which], tuple(ids), normalize)
        [spelling] = cache.names_of_texts(encoder, [text], normalize)
        name = cache.name_of_ids(encoder, ids, normalize)
        assert name is not None
        assert spelling is not None
        if step == "ask":
            for entry in (*cache.find_texts([spelling]), cache.find_ids(name, spelling)):
                if entry is not None:
                    assert (entry.vector, entry.tokens) == (vector, len(ids))
                    assert key in known, "nobody computed this"
        elif step == "compute":
            cache.keep(encoder, [Computed(name, vector, len(ids), (spelling,))])
            known.add(key)
        else:
            cache.forget(encoder)
            assert cache.name_of_ids(encoder, ids, normalize) is None
            names[which] += 2
            encoders[which] = CountingEncoder(names[which]).as_encoder()
        assert cache.nbytes <= cache.limit_bytes


def test_the_latest_is_there_and_the_one_that_was_not_asked_for_longest_left() -> None:
    metrics, encoder = Metrics(), CountingEncoder().as_encoder()
    cache = Cache(5 * ONE, metrics)
    cache.open(encoder)
    for at in range(8):
        put(cache, encoder, f"text {at}", [at])
    assert [has(cache, encoder, f"text {at}") for at in range(8)] == [False] * 3 + [True] * 5
    assert metrics.registry.get_sample_value("simile_cache_evictions_total") == 3
    assert metrics.registry.get_sample_value("simile_cache_bytes") == cache.nbytes == 5 * ONE


def test_what_was_asked_for_again_outlives_a_corpus_that_comes_once() -> None:
    encoder = CountingEncoder().as_encoder()
    cache = Cache(10 * ONE, Metrics())
    cache.open(encoder)
    for at in range(5):
        put(cache, encoder, f"often {at}", [1, at])
        ask(cache, encoder, f"often {at}")
    for at in range(1000):
        put(cache, encoder, f"once {at}", [2, at])
    assert all(has(cache, encoder, f"often {at}") for at in range(5))
    assert len(cache) == 10


def test_what_stays_leaves_room_for_what_is_new() -> None:
    """Or nothing new could ever be asked for a second time."""
    encoder = CountingEncoder().as_encoder()
    cache = Cache(10 * ONE, Metrics())
    cache.open(encoder)
    for at in range(30):
        put(cache, encoder, f"text {at}", [at])
        ask(cache, encoder, f"text {at}")
    put(cache, encoder, "new 1", [100])
    put(cache, encoder, "new 2", [101])
    assert has(cache, encoder, "new 1")
    assert has(cache, encoder, "new 2")
    assert has(cache, encoder, "text 29")


def test_texts_of_the_same_tokens_are_found_by_each_of_them_and_by_the_ids() -> None:
    encoder = CountingEncoder().as_encoder()
    cache = Cache(100 * ONE, Metrics())
    cache.open(encoder)
    put(cache, encoder, "River", [7])
    name = cache.name_of_ids(encoder, [7], True)
    assert name is not None
    for text in [f"river{' ' * at}" for at in range(20)]:
        [spelling] = cache.names_of_texts(encoder, [text], True)
        entry = cache.find_ids(name, spelling)
        assert entry is not None
        assert entry.vector == VECTOR
    found = cache.find_texts(cache.names_of_texts(encoder, ["River", "river", "river "], True))
    assert [entry is not None for entry in found] == [True] * 3
    assert cache.nbytes < 5 * ONE, "twenty spellings of one vector take no end of room"


def test_a_text_that_is_longer_than_any_that_fits_is_not_looked_up() -> None:
    encoder = CountingEncoder().as_encoder()
    cache = Cache(100 * ONE, Metrics())
    cache.open(encoder)
    texts: list[Source] = ["x" * 512, "x" * 513, [1, 2], "half \ud800 a pair"]
    names = cache.names_of_texts(encoder, texts, True)
    assert [name is None for name in names] == [False, True, True, False]


def test_a_closed_encoders_vectors_go_and_the_others_stay() -> None:
    cache = Cache(4000 * ONE, Metrics())
    old, new = CountingEncoder(1).as_encoder(), CountingEncoder(2).as_encoder()
    for encoder in (old, new):
        cache.open(encoder)
        for at in range(1000):
            put(cache, encoder, f"text {at}", [at])
    for at in range(0, 1000, 2):
        ask(cache, old, f"text {at}")
        ask(cache, new, f"text {at}")
    late = cache.name_of_ids(old, [5000], True)
    assert late is not None
    cache.forget(old)
    cache.keep(old, [Computed(late, VECTOR, 1, ())])  # a batch that was under way
    deadline = time.monotonic() + 30
    while len(cache) > 1000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert all(has(cache, new, f"text {at}") for at in range(1000))
    assert cache.nbytes == 1000 * ONE
    assert len(cache._texts) == 1000
    cache.forget(new)
    while cache.nbytes:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert cache._staying_bytes == 0


def test_many_threads_see_only_whole_entries_and_the_books_are_right_behind_them() -> None:
    encoder = CountingEncoder().as_encoder()
    cache = Cache(60 * ONE, Metrics())
    cache.open(encoder)
    wrong: list[str] = []

    def work(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for at in chance.zipf(1.3, 2000) % 500:
            [name] = names = cache.names_of_texts(encoder, [f"text {at}"], True)
            [entry] = cache.find_texts(names)
            expected = np.full(8, at, np.float32).tobytes()
            if entry is None:
                put(cache, encoder, f"text {at}", [int(at)], expected)
            elif entry.vector != expected:
                wrong.append(f"text {at} {name!r}")

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    everyone = [*cache._on_trial.values(), *cache._staying.values()]
    assert cache.nbytes == sum(entry.nbytes for entry in everyone) <= cache.limit_bytes
    assert cache._staying_bytes == sum(entry.nbytes for entry in cache._staying.values())
    assert set(cache._texts) == {text for entry in everyone for text in entry.spellings}


FILL = """
import numpy as np
from service.batching.cache import Cache, Computed
from service.observability.metrics import Metrics
from tests.service.fakes import CountingEncoder

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

encoder, limit, before = CountingEncoder().as_encoder(), 64 * 2**20, resident()
cache = Cache(limit, Metrics())
cache.open(encoder)
for at in range(60_000):
    names = cache.names_of_texts(encoder, [f"text {at}"], True)
    cache.find_texts(names)
    ids = cache.name_of_ids(encoder, [at, 1], True)
    cache.keep(encoder, [Computed(ids, np.full(384, at, np.float32).tobytes(), 2, tuple(names))])
print((resident() - before) / limit, cache.nbytes / limit)
"""


def test_a_full_cache_takes_the_memory_that_it_says() -> None:
    root = Path(__file__).parents[3]
    run = subprocess.run(
        [sys.executable, "-c", FILL], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    resident, counted = map(float, run.stdout.split())
    assert 0.99 < counted <= 1
    assert 0.85 < resident < 1.1, f"{resident:.2f} of the room"
