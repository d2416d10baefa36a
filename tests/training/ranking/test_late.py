"""The features of late interaction of judged queries, with a tiny model."""

from pathlib import Path

import numpy as np
import pytest

from models.encoder import Encoder
from models.store import ModelStore
from models.tokens.late import COMPARED, DIMENSIONS, LATE
from tests.training.ranking.judged import judged_queries
from training.ranking import late
from training.ranking.late import compare_tokens

TEXTS = {f"d{at}": f"the red stone number {at} sleeps in the river" for at in range(400)}


@pytest.fixture(scope="module")
def encoder(tiny_models_dir: Path) -> Encoder:
    [manifest] = ModelStore(tiny_models_dir).versions()
    return ModelStore(tiny_models_dir).open(manifest.version)


def test_the_best_candidates_with_a_text_get_features(encoder: Encoder) -> None:
    examples = judged_queries(3)
    gone = examples[0].ids[2]
    found, projection, size = compare_tokens(
        examples, encoder, {id: text for id, text in TEXTS.items() if id != gone}
    )
    assert projection.shape == (32, DIMENSIONS)
    assert 8 * DIMENSIONS <= size <= 20 * DIMENSIONS
    for before, each in zip(examples, found, strict=True):
        assert each._replace(late=None) == before._replace(late=None)
        assert each.late is not None
        assert each.late.shape == (len(each.ids), len(LATE))
        known = [at for at, id in enumerate(each.ids[:COMPARED]) if id != gone]
        assert np.flatnonzero(~np.isnan(each.late[:, 0])).tolist() == known


def test_a_candidate_with_the_words_of_the_query_is_the_nearest(encoder: Encoder) -> None:
    [example] = judged_queries(1)
    query = "how do i reset my account password"
    [found], _, _ = compare_tokens([example._replace(query=query)], encoder, TEXTS | {example.ids[7]: query})
    assert found.late is not None
    assert np.nanargmax(found.late[:, 0]) == 7
    assert found.late[7, 0] == pytest.approx(1, abs=0.01)


def test_the_number_of_documents_has_a_limit(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "MAX_DOCUMENTS", COMPARED + 5)
    found, _, _ = compare_tokens(judged_queries(2), encoder, TEXTS)
    there = [int((~np.isnan(each.late[:, 0])).sum()) for each in found if each.late is not None]
    assert there[0] == COMPARED
    assert 5 <= there[1] < COMPARED
