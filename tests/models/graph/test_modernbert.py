"""ModernBERT's graph against numpy and transformers, with the settings that only this family has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sentence_transformers")
from models.errors import Unsupported
from models.graph import families
from models.graph.backbone import read_backbone
from models.graph.modernbert import ModernBackbone
from models.publishing.publish import prepare
from models.sources.folder import read_source
from models.store import ModelStore
from tests.models.families import family_source
from tests.models.test_families import CLOSE, TEXTS, imported, reference

OTHERWISE: dict[str, Any] = {
    "norm_bias": True,
    "attention_bias": True,
    "mlp_bias": True,
    "local_attention": 6,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
    },
}


def test_settings_of_its_own(tmp_path: Path) -> None:
    folder = family_source(tmp_path / "model", "modernbert", **OTHERWISE)
    store = ModelStore(tmp_path / "models")
    manifest = imported(folder, store)
    assert manifest.packed
    found = store.open(manifest.version).encode(TEXTS).vectors
    np.testing.assert_allclose(found, reference(folder, TEXTS), atol=CLOSE)


def test_a_configuration_of_the_older_kind_as_released_models_have(tmp_path: Path) -> None:
    folder = family_source(tmp_path / "model", "modernbert")
    config = json.loads((folder / "config.json").read_bytes())
    for name in ("layer_types", "rope_parameters", "global_attn_every_n_layers"):
        config.pop(name, None)
    config |= {"global_attn_every_n_layers": 2, "global_rope_theta": 400.0, "local_rope_theta": 70.0}
    (folder / "config.json").write_text(json.dumps(config))
    store = ModelStore(tmp_path / "models")
    found = store.open(imported(folder, store).version).encode(TEXTS).vectors
    np.testing.assert_allclose(found, reference(folder, TEXTS), atol=CLOSE)


def test_a_token_sees_half_a_window_in_local_layers(tmp_path: Path) -> None:
    folder = family_source(
        tmp_path / "model", "modernbert", layer_types=["sliding_attention"] * 2, num_hidden_layers=2
    )
    source = read_source(folder)
    backbone = families.build_backbone(source.config)
    assert isinstance(backbone, ModernBackbone)
    tensors = read_backbone(source.weights, backbone)
    row = list(range(10, 60))
    first = families.embed(backbone, tensors, source.head, [row])  # `cls` pools the first token.
    reached = 2 * backbone.window  # tokens that two layers reach
    changed = [[*row[: at - 1], 7, *row[at:]] for at in (reached + 1, reached + 2)]
    near, far = (families.embed(backbone, tensors, source.head, [other]) for other in changed)
    assert np.abs(near - first).max() > 1e-4
    assert np.array_equal(far, first)
    assert prepare(source).model.graph.name == "modernbert"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hidden_activation": "mish"}, "activation 'mish'"),
        ({"layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "RoPE variants"),
        ({"num_attention_heads": 5}, "5 heads"),
    ],
)
def test_what_its_graph_does_not_know_is_left_to_torch(
    tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    folder = family_source(tmp_path / "model", "modernbert")
    config = json.loads((folder / "config.json").read_bytes()) | changed
    with pytest.raises(Unsupported, match=named):
        families.build_backbone(config)
    assert not families.knows(config)
