"""Learn the search settings of each collection: the default mode and the length of passages. Start at `tune`.

    judged queries ─▶ nDCG@10 with each setting ─▶ chosen by four folds, judged by the fifth ─▶ new version

A setting is measured as it is served, with the ranking of the collection. Queries that rest on one key do not
choose, and neither do clicks, because clicks favor the documents that were shown. The encoder stays, so the
new version embeds nothing, unless the length of passages changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from models.manifest import FUSION, Mode, SearchDefaults
from models.search.passages import usual_tokens
from models.search.ranking import Ranking
from training.errors import NothingToLearn
from training.evaluation.modes import MODES
from training.evaluation.paired import spread
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable, build_scorable
from training.methods.recipe_files import SEARCH
from training.ranking.cross_validation import COMING, Rows, cross_validate, draw_folds
from training.ranking.fitting import MIN_QUERIES
from training.ranking.rules import describe, judge_settings
from training.retraining import ledger
from training.retraining import searches as own
from training.retraining.gather import Gathered
from training.retraining.judgements import Judged
from training.retraining.publication import Learned, Outcome, publish_learned
from training.retraining.scoring import find_examples, read_rankings
from training.retraining.searches import Setting

_LENGTHS = (64, 128, 512)  # Tokens of a passage that are tried, besides the default and all that are read.
_ERRORS = 2  # Standard errors that another setting must gain, because passages are embedded again.


def tune(gathered: Gathered) -> Outcome:
    """Learns the settings of each collection with enough judged queries, and publishes those accepted.

    Raises:
        NothingToLearn: Too few queries are judged, no judgment changed, or no other setting is better.
    """
    config, store, say, service = gathered.config, gathered.store, gathered.say, gathered.served
    served = store.verify(gathered.active)
    found = choosing(gathered.found)
    searched = own.judged_search(gathered.split, found.answers, config.corpus.candidates)
    parts = [part for part in searched.parts() if len(part[1].queries) >= MIN_QUERIES]
    if not parts:
        raise NothingToLearn(f"no collection has {MIN_QUERIES} judged queries that may choose its search")
    rankings, known = read_rankings(store, served), ledger.read(store, SEARCH)
    learned: dict[str, Learned] = {}
    with closing(store.open(gathered.active, threads=config.schedule.encoding_threads)) as encoder:
        model = own.caching(build_scorable(encoder, passages=service.passages))
        for name, part in parts:
            now, ranking = Setting.of(served.search.get(name), service.mode), rankings.get(name)
            settings = list_settings(now, model.reads, service.mode)
            about = served.fingerprint, settings, ranking, part.queries, part.relevant
            digest = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
            if known.get(name) != digest:
                say(f"trying {len(settings)} settings for the search of {name}")
                if (better := _learn(part, model, settings, ranking, found)) is not None:
                    learned[name] = better._replace(digest=digest)
                ledger.remember(store, SEARCH, {name: digest})
    if not learned:
        raise NothingToLearn("no judgment changed, or no other mode and length of passages is clearly better")
    return publish_learned(store, served, SEARCH, learned, say)


def choosing(found: Judged) -> Judged:
    """Returns the judgments of the queries that may choose settings.

    In cross-validation, the same queries judge the settings, in other folds.
    """
    may = found.judges - found.keys.keys() - found.of_use
    answers = {query: ids for query, ids in found.answers.items() if query in may}
    return found._replace(answers=answers, held=answers)


def list_settings(now: Setting, reads: int, mode: Mode | None) -> list[Setting]:
    """Returns the settings to try. The first is the current one.

    Args:
        now: The current setting.
        reads: Tokens that the model reads, or 0 if documents are not split.
        mode: Mode that the service prescribes, or None.
    """
    tried = [tokens for tokens in (*_LENGTHS, reads) if tokens <= reads and tokens != usual_tokens(reads)]
    lengths = dict.fromkeys([now.passage_tokens, *([None, *tried] if reads else [])])
    modes = [mode] if mode else MODES
    # Keyword search has no passages.
    found = [Setting(each, length) for length in lengths for each in modes if each != "lexical" or not length]
    return [*dict.fromkeys([now, *found])]


def _learn(
    part: Collection, model: Scorable, settings: Sequence[Setting], ranking: Ranking | None, found: Judged
) -> Learned | None:
    """Returns the new setting of a collection, without a digest. None if the current setting stays."""
    compared = [cross_validate(*find_examples(part, model, each, found, ranking)) for each in settings]
    best = settings[choose(_stack(compared, COMING))]
    if best == settings[0]:
        return None
    rows = {}
    for row, now in compared[0].items():
        scores = _stack(compared, row)
        chosen = np.zeros(len(scores), np.int64)
        for fold in draw_folds(now.examples, row):
            chosen[fold.test] = choose(np.delete(scores, fold.test, axis=0))
        after = scores[np.arange(len(scores)), chosen]
        ranks = [(now.ranks[at, 1], compared[each][row].ranks[at, 1]) for at, each in enumerate(chosen)]
        rows[row] = now._replace(before=now.after, after=after, ranks=np.array(ranks), examples=(), hits=())
    result = SearchDefaults(
        mode=best.mode, weight=best.weight, fusion=FUSION, passage_tokens=best.passage_tokens
    )
    length = f", passages of {best.passage_tokens} tokens" if best.passage_tokens else ""
    told = [f"Mode {best.mode}{length}.", *describe(rows)]
    return Learned(rows, judge_settings(rows), told, "", result)


def _stack(compared: Sequence[Rows], row: str) -> NDArray[np.float64]:
    """Returns the nDCG@10 of each query with each setting, shape (q, s)."""
    return np.stack([each[row].after for each in compared], axis=1)


def choose(scores: NDArray[np.float64]) -> int:
    """Returns the column of the best setting, or 0 if it gains less than two standard errors over the first.

    Args:
        scores: nDCG@10 of each query with each setting, shape (q, s).
    """
    gains = [spread(scores[:, 0], column) for column in scores.T]
    clear = [each.mean if each.mean > _ERRORS * each.error else 0.0 for each in gains]
    return int(np.argmax(clear))
