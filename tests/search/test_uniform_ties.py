"""Of equal plans the uniform search returns the same ones, however many rows it looks at in one go."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.strategies import COLUMNS, strategies
from shardwright.cost.trust.rarity import strategy_switches
from shardwright.search.planner import plan
from shardwright.search.uniform import search
from shardwright.search.uniform.best import Best
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model

SIZES = ("LAYOUT_BATCH", "EARLY_BATCH", "ARRANGEMENT_BATCH", "SIMULATION_BATCH")


@pytest.mark.parametrize("seed", range(20))
def test_of_equal_rows_the_same_wins_in_whatever_order_they_come(seed):
    draw = np.random.default_rng(seed)
    layouts, values = draw.integers(0, 5, 40), draw.integers(1, 4, 40).astype(float)
    rows = strategies([{"first_layers": int(a), "last_layers": int(b)} for a, b in draw.integers(1, 4, (40, 2))])
    found = set()
    for _ in range(5):
        best = Best(3, 0.01, strategy_switches("Hopper", "dense"))
        for part in np.array_split(draw.permutation(40), draw.integers(1, 8)):
            best.offer(layouts[part], values[part], rows.take(part))
        found.add(
            tuple(
                (entry.value, entry.layout, *(getattr(entry.row, name)[0] for name in COLUMNS))
                for entry in best.ranked()
            )
        )
    assert len(found) == 1


@pytest.mark.parametrize("sizes", [(16, 4, 8, 4), (2000, 300, 300, 64)])
@pytest.mark.parametrize("model", ["opt-350m", "llama-2-13b"])
def test_plans_do_not_depend_on_the_sizes_of_batches(model, sizes, monkeypatch):
    given = load_model(model), load_cluster("2x8xA100-SXM-80"), make_job(global_batch=64, seq_len=2048)
    usual = plan(*given, top=5)
    for name, size in zip(SIZES, sizes, strict=True):
        monkeypatch.setattr(search, name, size)
    assert plan(*given, top=5).plans == usual.plans
