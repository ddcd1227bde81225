"""What fits: brute force over the whole declared space says the same, just below and just above the leanest strategy and at
the median; what fits in less is among what fits in more."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
from hypothesis import HealthCheck, given, settings
from tests.nightly import examples
from tests.search.problems import Problem, problems, solved

from shardwright.arrays import Ints
from shardwright.cost.iteration.batch import evaluate
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space
from shardwright.search.uniform.completion import fitting_layouts


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck), derandomize=True)
@given(problem=problems(most=4000))
def test_brute_force_says_the_same(problem: Problem) -> None:
    where, verdict = solved(problem)
    fitting = fitting_layouts(where, Space(pins=MappingProxyType(problem.pins)), Filters())

    def those(memory_bytes: float, among: Ints | None = None) -> set[int]:
        return {number for some in fitting(memory_bytes, among) for number in some.tolist()}

    roomy = evaluate(replace(where, pool=replace(where.pool, memory_bytes=1e15)), verdict.rows)
    peaks = roomy.peak_bytes[roomy.fits]  # of those that the host has room for
    if not len(peaks):
        assert not those(1e15)
        return
    least, median = peaks.min() / where.headroom, float(np.median(peaks)) / where.headroom
    assert not those(float(least) * (1.0 - 1e-9))
    leanest, many = those(float(least) * (1.0 + 1e-9)), those(median * (1.0 + 1e-9))
    assert leanest and leanest == those(float(least) * (1.0 + 1e-9), np.array(sorted(many)))
