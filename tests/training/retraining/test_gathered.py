"""Queries of events that may be trained on: none that people judged, and none that nearly repeats one."""

from __future__ import annotations

from training.retraining.clicks import Use
from training.retraining.config import Config, CorpusTable, EventsTable
from training.retraining.gathered import _unjudged
from training.retraining.judgements import Judgement, judged

JUDGED = "how do I reset the password of my old account on the web page of the shop today"
NEARLY = f"{JUDGED}?"
OTHER = "why is the printer on the second floor slow"


def test_a_query_that_judges_is_in_no_training_however_it_is_written() -> None:
    found = judged([Judgement(JUDGED, "a", True)], {"a": "a"}, 0.5)
    used = Use([], "", {"default": (JUDGED.upper(), NEARLY, OTHER), "notes": (NEARLY, OTHER)})

    def asked(*, allowed: bool) -> dict[str, list[str]]:
        config = Config(corpus=CorpusTable(service="http://service"), events=EventsTable(queries=allowed))
        return _unjudged(config, used, found)

    assert asked(allowed=True) == {"default": [OTHER], "notes": [OTHER]}
    assert asked(allowed=False) == {}
