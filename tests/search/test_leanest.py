"""The least memory in which any strategy fits is that of the leanest of all candidates, of GPUs and of their machines,
whatever is pinned, within the rules."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.nightly import nightly
from tests.search import oracle_uniform as oracle
from tests.search.problems import Problem, problems

from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import bounded
from shardwright.cost.strategies import Strategies
from shardwright.search.rules.filters import Filters
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import Space
from shardwright.search.uniform.leanest import any_fits, least_in_host, least_on_gpu
from shardwright.spec.options import ActivationOffload, Options

RULES = (
    "",
    "$dp > 2",
    "$pp == 1 && $recompute_granularity == none",
    "$sharding == zero3",
    "$recompute_num_layers == 1",
    "$overlap_grad_reduce",
    "$optimizer_offload_fraction > 0.5\n$recompute_method == block",
)
LITTLE = 1e-9


@pytest.mark.parametrize("examples", [10, *nightly([400])])
def test_the_least_memory_is_that_of_the_leanest_candidate(examples: int) -> None:
    counts = [0, 0]
    many = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    many(
        given(
            problem=problems(most=4000),
            rule=st.sampled_from(RULES),
            place=st.sampled_from((0.0, 0.02, 0.3, 1.0)),
            offload=st.sampled_from((None, "inputs")),
        )(lambda problem, rule, place, offload: is_least(problem, rule, place, offload, counts))
    )()
    assert min(counts) > examples / 10


def is_least(problem: Problem, rule: str, place: float, offload: ActivationOffload | None, counts: list[int]) -> None:
    """`place` says where between the leanest and the fattest candidate the GPUs are whose host is asked for."""
    job = replace(problem.context.job, options=Options(activation_offload=offload))
    where, filters = replace(problem.context, job=job), Filters(rules=tuple(parse_rules(rule, "rules")))
    space = Space(pins=MappingProxyType(problem.pins))
    rows = oracle.candidates(where, problem.pins)
    rows = rows.take(~filters.mask(where, rows))
    peaks = in_machines(where, rows, 1e18)
    least = least_on_gpu(where, space, filters)
    if not np.isfinite(peaks).any():
        assert least is None
    else:
        assert least is not None
        np.testing.assert_allclose(least * where.headroom, peaks.min(), rtol=LITTLE)
        for memory, fits in ((least * (1.0 + LITTLE), True), (least * (1.0 - LITTLE), False)):
            assert any_fits(replace(where, pool=replace(where.pool, memory_bytes=memory)), space, filters) is fits
        counts[0] += 1
    roomy = replace(where, pool=replace(where.pool, host_memory_bytes=1e18))
    peaks = in_machines(roomy, rows, 1e18)
    if not len(peaks):
        return
    capacity = (1.0 + LITTLE) * float(np.quantile(peaks, place)) / where.headroom
    small = replace(where, pool=replace(where.pool, memory_bytes=capacity))
    host = least_in_host(small, space, filters)
    assert host is not None
    for factor, fits in ((1.0 + LITTLE, True), (1.0 - LITTLE, False)):
        there = replace(small, pool=replace(small.pool, host_memory_bytes=host * factor))
        assert np.isfinite(in_machines(there, rows, capacity)).any() == (fits or host == 0.0)
    counts[1] += host > 0.0


def in_machines(where: Context, rows: Strategies, memory_bytes: float) -> np.ndarray:
    """Return the bytes of the fullest GPU of each row, infinite where its GPU or its machine is too small."""
    if not len(rows):
        return np.zeros(0)
    verdict = bounded(replace(where, pool=replace(where.pool, memory_bytes=memory_bytes)), rows)
    return np.where(verdict.fits, verdict.peak_bytes, np.inf)
