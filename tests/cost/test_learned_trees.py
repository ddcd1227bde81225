"""Trees evaluated with numpy: by hand, and as xgboost itself does."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.learned.fitted import Forest, forest_arrays, forest_from, forest_sum


def test_a_row_falls_below_or_not_below_each_threshold():
    forest = Forest(
        feature=np.array([[0, 1, 1]], dtype=np.int32),
        threshold=np.array([[0.5, 2.0, np.inf]], dtype=np.float32),
        leaf=np.array([[1.0, 10.0, 100.0, 1000.0]], dtype=np.float32),
        bias=0.25,
    )
    rows = np.array([[0.0, 0.0], [0.0, 2.0], [0.5, 0.0], [9.0, 9.0]])
    assert forest_sum(forest, rows).tolist() == [1.25, 10.25, 100.25, 100.25]


def test_a_forest_survives_its_file():
    random = np.random.default_rng(0)
    forest = Forest(
        feature=random.integers(0, 5, (4, 7)).astype(np.int32),
        threshold=random.normal(size=(4, 7)).astype(np.float32),
        leaf=random.normal(size=(4, 8)).astype(np.float32),
        bias=0.5,
    )
    rows = random.normal(size=(1000, 5))
    again = forest_from(forest_arrays(forest))
    np.testing.assert_array_equal(forest_sum(again, rows), forest_sum(forest, rows))


def test_it_predicts_as_xgboost_does():
    xgboost = pytest.importorskip("xgboost", reason="needs the extra `calibrate`")
    from tools.refit.operators import forest_of

    random = np.random.default_rng(1)
    columns = random.normal(size=(3000, 6)).astype(np.float32)
    target = columns[:, 0] * np.where(columns[:, 1] > 0, 1.0, -2.0) + 0.1 * random.normal(size=3000)
    settings = {"max_depth": 5, "eta": 0.3, "nthread": 1, "seed": 0, "min_child_weight": 20.0}
    booster = xgboost.train(settings, xgboost.DMatrix(columns, target), 40)
    more = random.normal(size=(500, 6))
    expected = booster.predict(xgboost.DMatrix(more.astype(np.float32)))
    np.testing.assert_allclose(forest_sum(forest_of(booster, 5), more), expected, rtol=1e-4, atol=1e-4)
