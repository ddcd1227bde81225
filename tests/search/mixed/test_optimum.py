"""On small clusters, enumeration never finds a plan that beats the certificate, nor one better than a plan whose gap is
zero, nor one much better than what the search returns."""

from __future__ import annotations

import pytest
from tests.search.mixed.oracle import TooManyError, brute_force
from tests.search.mixed.problems import small, solved

SLOWEST = 1.2  # times the optimum, on problems of few micro-batches, where nothing is hidden
UNKNOWN = {4, 17, 21, 24, 26, 33, 34}  # enumeration takes too long


@pytest.mark.parametrize("seed", sorted(set(range(47)) - UNKNOWN))
def test_enumeration_does_not_beat_the_certificate(seed):
    against_enumeration(seed, most_gpus=4, most_layers=5, most_batch=4, most=400)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 400))
def test_enumeration_of_larger_clusters_does_not_beat_the_certificate(seed):
    try:
        against_enumeration(seed, most_gpus=6, most_layers=6, most_batch=4, most=600)
    except TooManyError:
        pytest.skip("the enumeration takes too long")


def against_enumeration(seed: int, *, most_gpus: int, most_layers: int, most_batch: int, most: int) -> None:
    problem = small(seed, most_gpus=most_gpus, most_layers=most_layers, most_batch=most_batch)
    best = brute_force(problem.contexts, problem.cluster, problem.settings, most)
    found = solved(problem, gap=0.0)
    assert bool(found.plans) == (best is not None)
    if best is None:
        return
    seconds = found.plans[0][0]
    assert found.lower_bound_seconds <= min(best.seconds, seconds) * (1 + 1e-9)
    assert seconds <= SLOWEST * best.seconds
    if seconds <= found.lower_bound_seconds * (1 + 1e-6):
        assert best.seconds >= seconds * (1 - 1e-6)
