"""Matrix products alone, as a contestant."""

import json
from pathlib import Path

import pytest

from benchmarks.products import KINDS, ROWS, Products
from benchmarks.rounds import Scenario
from benchmarks.workloads import Workload


@pytest.mark.parametrize("precision", KINDS)
def test_the_rate_counts_all_layers_of_the_model(precision: str, tmp_path: Path) -> None:
    calls = {}
    for layers in (1, 4):
        config = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers}
        (tmp_path / "config.json").write_text(json.dumps(config))
        products = Products("products", precision, tmp_path, threads=2, tokens=ROWS // 2)
        found = products.measure(Scenario("search", Workload("none", [], []), seconds=0.4), 0)
        assert found.rate > 0
        calls[layers] = products._share
    assert calls == {1: 2, 4: 0.5}  # searches per call that computes one layer
