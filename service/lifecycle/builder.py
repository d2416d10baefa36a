"""Completes the index of a generation. Start reading at `Builder.embed`.

For a new build, `Builder.load` first loads the stored vectors. `Builder.embed` then embeds the documents
without a vector. Writes continue during both steps. Both process documents in the order of their revisions. A
new or changed document always gets a higher revision, so a build ends even if writes never stop. Each step is
on disk before the next one begins, so an interrupted build can continue. A vector is stored only if its
document still has the same revision.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from models.search.content import Content
from service.active import Generation, Retired
from service.corpus.corpus import Corpus
from service.errors import Backend, Hung, ServiceError, Tokenizer, Validation
from service.store.values import DEFAULT_COLLECTION, Embedding, Unembedded

log = logging.getLogger(__name__)

STEP_DOCUMENTS = 64
STEP_BYTES = 16 << 20  # limit of the texts of a step; a single text may be larger
LOAD_ROWS = 1024  # A write waits for at most one such step: 5 ms at 384 dimensions.
STORE_ROWS = 1024  # rows per write job; the passages of a document stay together
LAST_LOOKS = 3  # A build ends after so many steps with only recent documents. The swap embeds the rest.
RECOUNT_SECONDS = 10.0  # time between counts of documents, because writes continue
HARMLESS = Content("A short sentence.")
RECENT_SECONDS = 60.0  # The rate is computed from the work of this time.
MIN_STEPS = 3  # steps before a rate is known
SAY_SECONDS = 30.0
RETRY_SECONDS, MAX_SECONDS = 0.5, 60.0  # after a full queue, a full disk, or a failing model

Tell = Callable[[int, int], None]  # number of embedded documents, and of all documents


class Builder:
    """Completes the index of one generation.

    Args:
        corpus: The documents.
        generation: The generation to complete.
        tell: Function that receives the number of documents done and the total number.
        documents_per_second: Speed limit for documents that exist when the build begins. 0 means no limit.
            Documents that are written later are embedded at full speed. Otherwise a slow build might never
            end.

    """

    def __init__(
        self, corpus: Corpus, generation: Generation, tell: Tell, documents_per_second: float = 0
    ) -> None:
        self._corpus = corpus
        self._store = corpus.store
        self._generation = generation
        self._tell = tell
        self._throughput = documents_per_second
        self._paced_to: int | None = None  # last revision at the beginning of the build
        self.progress = Progress(generation.version)

    async def load(self) -> None:
        """Loads the stored vectors into the index, and deletes the records of skipped texts.

        The vectors are loaded in steps, and writes may run between the steps.
        """
        generation, number = self._generation, self._generation.number
        await self._store.forget_skipped(number)
        generation.complete_through = 0
        after: int | None = 0
        while after is not None:
            after = await self._store.add_stored(number, after, LOAD_ROWS)

    async def warm(self) -> None:
        """Runs a forward pass of each encoder. The caller must handle an error of the model."""
        await self._corpus.embed(self._generation, [HARMLESS], [DEFAULT_COLLECTION])
        if self._generation.encoder.queries is not None:
            await self._corpus.embed_queries(self._generation, [HARMLESS.text])

    async def embed(self) -> None:
        """Embeds and indexes every document without a vector, including documents that are written meanwhile.

        If this fails, another call continues the work.

        Raises:
            Retired: The generation has missed a write, so its index has a gap.
            Hung: A forward pass of this generation hung earlier.
            ServiceError: The model fails on every text, or the queue or the disk is full.

        """
        generation = self._generation
        total, counted, looks = 0, float("-inf"), 0
        while True:
            self._check()
            if time.monotonic() - counted > RECOUNT_SECONDS:
                total, counted = await self._store.count_all(), time.monotonic()
            step, last, skipped, left, closing = await self._store.next_lacking(
                generation.number, generation.complete_through, self._step(), STEP_BYTES
            )
            if self._paced_to is None:
                self._paced_to = last
            done = generation.indexes.documents + skipped
            total = max(total, done) if step else done
            self.progress.tell(done, total)
            self._tell(done, total)
            generation.skipped, generation.missing = skipped, max(total - done, 0) + skipped
            if closing and (not step or min(step) > self._paced_to):
                looks += 1
            if looks > LAST_LOOKS or not (step or left):
                break
            if not step:
                continue
            started = time.monotonic()
            lacking = {**step}
            while shared := await self._store.share_vectors(generation.number, [*lacking]):
                for revision in shared:
                    del lacking[revision]
            await self._embed(lacking)
            generation.complete_through = max(step)
            if self._throughput and min(step) <= self._paced_to:
                await asyncio.sleep(max(0.0, len(step) / self._throughput - (time.monotonic() - started)))
            self.progress.worked(len(step), time.monotonic() - started)
        generation.complete_through, generation.missing = last, skipped

    def _check(self) -> None:
        """Checks whether the build can continue.

        Raises:
            Retired: The generation has missed a write.
            Hung: A forward pass of this generation hung.

        """
        if self._generation.retired:  # Its index could not follow a write.
            raise Retired(self._generation.version)
        if self._generation.fault is not None:
            raise Hung(self._generation.fault)

    def _step(self) -> int:
        """Returns the number of documents to embed in one step. If the speed is limited, steps are small."""
        return min(STEP_DOCUMENTS, max(1, int(self._throughput / 10))) if self._throughput else STEP_DOCUMENTS

    async def _embed(self, documents: Mapping[int, Unembedded]) -> None:
        """Embeds documents and stores their vectors.

        Documents on which the model fails are skipped and logged.

        Args:
            documents: The documents, by revision.

        """
        if not documents:
            return
        corpus, generation = self._corpus, self._generation
        try:
            embedded = await corpus.embed_stored(generation, documents)
        except Hung as error:
            if generation is not corpus.active.generation:
                generation.fault = error.message
            raise
        except (Backend, Tokenizer, Validation) as error:
            if len(documents) > 1:
                for revision, document in documents.items():
                    await self._embed({revision: document})
                return
            await self.warm()  # This fails if the model is the cause, not the text.
            for revision, document in documents.items():
                reason = error.error_type  # The message may quote the text.
                log.error("Document %r is left out of the index: %s", document.id, reason)  # noqa: TRY400
                await self._store.skip(generation.number, revision, error.message)
            return
        for rows in _jobs(embedded):
            await self._store.add_vectors(generation.number, rows)


def _jobs(embedded: Mapping[int, Embedding]) -> Iterator[dict[int, Embedding]]:
    """Divides embeddings into groups with about `STORE_ROWS` vectors each. Yields embeddings by revision."""
    rows: dict[int, Embedding] = {}
    count = 0
    for revision, embedding in embedded.items():
        rows[revision] = embedding
        count += len(embedding.passages)
        if count >= STORE_ROWS:
            yield rows
            rows, count = {}, 0
    if rows:
        yield rows


class Progress:
    """Measures the speed of a build, estimates the remaining time, and logs both from time to time.

    Only the time of steps counts, including the pauses of SIMILE_BUILD_RATE. Waiting for a queue or for
    memory does not reduce the speed.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._steps: deque[tuple[int, float]] = deque()  # documents and seconds of each recent step
        self._left: int | None = None
        self._said = time.monotonic()

    @property
    def rate(self) -> float | None:
        """Documents per second in recent steps, or None if not enough steps were measured yet."""
        if len(self._steps) < MIN_STEPS:
            return None
        return sum(documents for documents, _ in self._steps) / sum(seconds for _, seconds in self._steps)

    @property
    def eta_seconds(self) -> float | None:
        """Estimated remaining seconds, or None if the speed is not known yet."""
        rate = self.rate
        return None if rate is None or self._left is None else self._left / rate

    def worked(self, documents: int, seconds: float) -> None:
        """Records a finished step."""
        self._steps.append((documents, max(seconds, 1e-6)))
        while len(self._steps) > MIN_STEPS and sum(seconds for _, seconds in self._steps) > RECENT_SECONDS:
            self._steps.popleft()

    def tell(self, done: int, total: int) -> None:
        """Records the number of finished documents and the total number."""
        self._left = total - done
        eta = self.eta_seconds
        if eta is not None and time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            log.info(
                "Building %s: %d of %d documents (%d %%), %.3g a second, about %s to go",
                self._version,
                done,
                total,
                100 * done // max(total, 1),
                self.rate,
                _in_words(eta),
            )


def _in_words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class CatchUp:
    """Embeds new documents for the followers of the active generation (service/active.py).

    A write does not wait for the vectors of followers.
    If a follower missed the vector of a new document, `note` starts one task for each complete follower. A
    follower that is being built has a builder of its own. Use this class on the event loop.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._behind: set[Generation] = set()
        self._tasks: dict[Generation, asyncio.Task[None]] = {}
        self._stopped = False

    def note(self) -> None:
        """Starts a task for each complete follower.

        Call this after a write for which a follower has no vector.
        """
        for follower in self._corpus.active.followers:
            if not follower.is_complete or follower.fault is not None or self._stopped:
                continue
            self._behind.add(follower)
            if follower not in self._tasks:
                self._tasks[follower] = asyncio.create_task(self._fill(follower))

    async def stop(self) -> None:
        """Stops all tasks.

        If a version is built again, its builder embeds the documents that are still missing.
        """
        self._stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self, follower: Generation) -> None:
        """Embeds documents until the follower is complete or retired."""
        builder, pause = Builder(self._corpus, follower, lambda *_: None), RETRY_SECONDS
        try:
            while follower in self._behind:
                self._behind.discard(follower)
                try:
                    with follower.held():
                        await builder.embed()
                    pause = RETRY_SECONDS
                except Hung:
                    log.exception("%s is closed", follower.version)
                    self._corpus.active.leave(follower)
                except ServiceError as error:
                    log.warning("Documents of %s are missing: %s", follower.version, error.message)
                    self._behind.add(follower)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, MAX_SECONDS)
        except Retired:
            log.debug("%s is closed", follower.version)
        except Exception:  # A bug. The next write tries again.
            log.exception("%s could not be completed", follower.version)
        finally:
            self._behind.discard(follower)
            del self._tasks[follower]
