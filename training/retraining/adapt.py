"""Retrain for text that the model cannot read: add tokens to the vocabulary, then train in stages.

    training part ─▶ texts, pairs ─▶ stages (recipes/stages/adapt.toml) ─▶ one.py, with the same gate

Triples are not used, because a model that cannot read the text cannot mine useful negatives. The new version
becomes a new anchor (anchor.py), because the old anchor cannot read the text.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from training.errors import NothingToLearn
from training.methods.stages import Stages
from training.retraining import searches as own
from training.retraining import sides
from training.retraining.gather import Gathered
from training.retraining.one import Job, Staged
from training.retraining.plan import require_judge
from training.retraining.rows import build_corpus
from training.retraining.searches import can_decide
from training.runs.options import Options
from training.text.corpus import PAIRS, TEXTS

MIN_PAIRS = 32  # a batch of the recipe; fewer teach nothing


def adapt_job(job: Job, stages: Stages, gathered: Gathered) -> Job:
    """Returns the job of the first stage with all stages. train.minutes limits the time, if it is set."""
    config = gathered.config
    require_judge(config, can_decide(job.searches, gathered.found), config.gate.data)
    corpora, found, learned = {TEXTS: job.corpus}, gathered.found, {*job.about["learned"]}
    with contextlib.suppress(NothingToLearn):  # no titles and no judged queries: text alone
        withheld = own.withheld(gathered.split, (*found.held, *found.dev))
        pairs = build_corpus(PAIRS, gathered.split.train, found.train, None, 0, withheld)
        if len(pairs) >= MIN_PAIRS:
            corpora[PAIRS] = pairs
            learned |= sides.learned(found.train)
    timed = stages if job.minutes is None else replace(stages, minutes=job.minutes)
    return replace(
        job,
        steps=None,
        data=config.gate.data,  # not what SIMILE_EVAL_DATA names: those sets are in a language that it read
        choose=None,
        options=Options(seed=config.train.seed),
        staged=Staged(timed, corpora),
        about={**job.about, "learned": sorted(learned)},
    )
