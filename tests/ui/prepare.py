"""Makes a models folder for tests of the page: two usable versions, and one that the gate refused.

    python -m tests.ui.prepare FOLDER tiny|default|rerankers|rankings  with the Python that runs the service

Creates FOLDER/models, and prints the version that tests activate second. With `rerankers`, the folder has one
encoder and two rerankers, and with `rankings` two versions with the same encoder.
"""

import json
import shutil
import sys
from pathlib import Path

from benchmarks.live_week import add_version
from models.files.retrainings import write_progress, write_runs
from models.manifest import ANSWERS, REPORT, REPORT_PAGE, Gate, Manifest
from models.publishing.default import default_source
from models.publishing.publish import publish
from models.search.ranking import Ranking
from models.store import ModelStore
from tests.parts.rerankers import publish_reranker
from tests.tiny import tiny_source

REASON = "search for a text by its title fell by 6.1 points, more than the 2.0 allowed"
GAINS = [
    ("own questions as they come", "Questions as they come", 0.022, -0.003, 0.047, False),
    ("own titles", "Search for a text by its title", -0.061, -0.090, -0.032, False),
    ("own neighbours", "Search for a sentence by the one before it", 0.031, 0.008, 0.054, True),
]
GEOMETRY = {"alignment": 0.21, "uniformity": -3.1, "pairs": 1406, "sentences": 15487}
SUMMARY = (
    "Questions as they come: 0.322 → 0.344 nDCG@10, candidate minus active between -0.3 and +4.7 "
    "points: not certain; about 135 judged queries would settle a gain of this size, you have 106."
)
HOSTILE = "<script>document.title='stolen'</script><img src=x onerror=alert(1)>"
CHANGED = {
    "query": f"how do I get my money back {HOSTILE}",
    "difference": 0.41,
    "ranks": [None, 7],
    "relevant": ["support-refund-window"],
    "active": [{"id": "a", "rank": 1, "text": "The invoice came twice."}],
    "candidate": [
        {"id": "b", "rank": 1, "text": HOSTILE},
        {"id": "support-refund-window", "rank": 7, "text": "Money back within 30 days."},
    ],
}
LOSS = [[step, 0.4 + 2.6 / (1 + step / 60)] for step in range(10, 500, 10)]
DEV = [[125, 0.612], [250, 0.634], [375, 0.651], [490, 0.648]]
ENDED = {
    "started": "2026-11-20T02:00:00+00:00",
    "ended": "2026-11-20T02:31:00+00:00",
    "why": "clock",
    "status": 3,
}
SCHEDULE = {
    "cron": "0 2 * * *",
    "timezone": "UTC",
    "next_run": "2099-01-01T02:00:00+00:00",
    "running": None,
    "last_run": ENDED | {"outcome": "refused", "said": f"Refused: {REASON}. {HOSTILE}"},
    "ends": [ENDED | {"outcome": "refused"}, ENDED | {"outcome": "nothing to learn", "status": 4}],
}
PROGRESS = {
    "started": "2026-11-21T02:00:00+00:00",
    "updated": "2099-01-01T02:00:00+00:00",
    "doing": "training",
    "step": 300,
    "steps": 490,
    "eta_seconds": 340.0,
    "loss": LOSS[:30],
    "dev": DEV[:2],
    "dev_name": "search_dev",
}


def main() -> None:
    folder, model = Path(sys.argv[1]), sys.argv[2]
    store = ModelStore(folder / "models")
    if model == "rerankers":
        store.request(publish(store, tiny_source(folder / "source"), origin="made for tests").version)
        first_reranker, other = (publish_reranker(store.root, seed) for seed in (0, 1))
        store.request_reranker(first_reranker)
        print(other)
        return
    if model == "rankings":
        plain = publish(store, tiny_source(folder / "source"), origin="made for tests").version
        store.request(plain)
        print(add_version(store, plain, ranking=Ranking(weights={"length": 5.0})))
        return
    if model == "tiny":
        sources = [tiny_source(folder / f"source-{seed}", seed=seed) for seed in (0, 1)]
    else:
        sources = [folder / "source-0", folder / "source-1"]
        with default_source() as source:
            for copy in sources:
                shutil.copytree(source, copy)
        _pool_first_token(sources[1])
    sources.append(tiny_source(folder / "source-2", seed=2))
    places = (store, store, ModelStore(folder / "elsewhere"))
    first, second, third = (
        publish(place, source, origin=f"made for tests, {source.name}")
        for place, source in zip(places, sources, strict=True)
    )
    store.request(first.version)
    write_runs(store.root, SCHEDULE)
    write_progress(store.root, PROGRESS)
    store.publish(lambda into: _refused(into, places[2].folder(third.version), third, first.version))
    print(second.version)


def _pool_first_token(source: Path) -> None:
    """Changes the pooling of a model, so that two versions with the same weights answer differently."""
    config = {
        "word_embedding_dimension": 384,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    }
    (source / "1_Pooling" / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _refused(into: Path, source: Path, manifest: Manifest, active: str) -> Manifest:
    """Copies a version from `source` to `into` as a refused one, with a report. Returns its manifest."""
    shutil.copytree(source, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
    (into / REPORT).write_text(json.dumps(_report(active)), encoding="utf-8")
    answers = into / REPORT_PAGE / ANSWERS
    answers.parent.mkdir(exist_ok=True)
    answers.write_text(f"{json.dumps(CHANGED)}\n" * 2, encoding="utf-8")
    changed = {
        "parent": active,
        "gate": Gate(mode="on", verdict="refused", reason=REASON),
        "scores": {"own": {"judged": {"ndcg_at_10": 0.344}}},
        "files": {},
    }
    return manifest.model_copy(update=changed)


def _report(active: str) -> dict[str, object]:
    """Returns a report of the gate, like those of training/retraining/gate/verdict.py."""
    gains = [
        {"name": name, "title": title, "difference": difference, "low": low, "high": high, "shown": shown}
        | {"queries": 106, "least": 0.031, "enough": 135}
        for name, title, difference, low, high, shown in GAINS
    ]
    row: dict[str, object] = {
        "name": "own titles",
        "title": "Search for a text by its title, dense",
        "measure": "nDCG@10",
    }
    row |= {"active": 0.812, "candidate": 0.751, "difference": -0.061, "allowed": -0.02, "passed": False}
    return {
        "accepted": False,
        "headline": "Refused.",
        "reasons": [REASON],
        "summary": [SUMMARY],
        "gains": gains,
        "rows": [row],
        "changed": {"gained": [CHANGED], "lost": []},
        "candidate": {"geometry": GEOMETRY},
        "active": {"geometry": GEOMETRY | {"uniformity": -3.8}},
        "curve": {"loss": LOSS, "dev": DEV, "dev_name": "search_dev"},
        "meta": {
            "date": "2026-11-20T02:11:00+00:00",
            "recipe": "pairs",
            "texts": 5183,
            "active": {"version": active},
        },
    }


if __name__ == "__main__":
    main()
