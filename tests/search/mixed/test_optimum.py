"""On small clusters, enumeration never finds a plan that beats the certificate, nor one better than a plan whose gap is
zero, nor one much better than what the search returns."""

from __future__ import annotations

import numpy as np
import pytest
from tests.nightly import nightly
from tests.search.mixed.oracle import brute_force, sample
from tests.search.mixed.problems import Small, small, solved, unlike

from shardwright.cost.strategies import BLOCK, SELECTIVE, UNIFORM, UNSHARDED, ZERO1

SLOWEST = 1.2  # times the optimum, on problems of few micro-batches, where nothing is hidden
MOST = 50_000  # sets of pipelines that an enumeration looks at before it gives up, and the test fails
BEST_OF_ALL = 5e-5  # the gap below which the report calls a plan the best of all
PINS = (
    {"overlap_grad": (0,)},
    {"overlap_param": (0,)},
    {"overlap_grad": (1,), "overlap_param": (0,), "sharding": (ZERO1,)},
    {"sharding": (UNSHARDED,)},
    {"sharding": (ZERO1,), "overlap_param": (1,)},
    {"offload": (1.0,)},
    {"offload": (0.5,), "overlap_grad": (0,)},
    {"recompute": (UNIFORM,)},
    {"recompute": (BLOCK, UNIFORM)},
    {"recompute": (SELECTIVE,), "sharding": (UNSHARDED,)},
    {"first_layers": (1, 2)},
    {"last_layers": (1,)},
    {"gpus": (4,)},
)
SLOW = (0, 11)  # seconds each, the others a tenth
SOME, MANY = [seed for seed in range(7) if seed not in SLOW], [*SLOW, *range(7, 700)]


@pytest.mark.parametrize("seed", SOME)
def test_enumeration_does_not_beat_the_certificate(seed):
    against_enumeration(small(seed), SLOWEST)


@pytest.mark.parametrize("seed", range(13))
def test_enumeration_with_pins_does_not_beat_the_certificate(seed):
    against_enumeration(pinned(seed), SLOWEST)


def test_enumeration_under_muon_does_not_beat_the_certificate():
    """Where memory is short, so that the ends' two moments count."""
    against_enumeration(small(2, optimizer="muon"), SLOWEST)


@pytest.mark.parametrize("seed", [*range(2), *nightly(range(2, 300))])
def test_enumeration_of_unlike_layers_does_not_beat_the_certificate(seed):
    against_enumeration(unlike(small(seed, most_gpus=6, most_layers=6), seed), SLOWEST)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(90))
def test_enumeration_of_more_clusters_under_muon_does_not_beat_the_certificate(seed):
    against_enumeration(small(seed, optimizer="muon"), SLOWEST)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(13, 360))
def test_enumeration_with_more_pins_does_not_beat_the_certificate(seed):
    against_enumeration(pinned(seed), SLOWEST)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", MANY)
def test_enumeration_of_more_clusters_does_not_beat_the_certificate(seed):
    against_enumeration(small(seed), SLOWEST)


@pytest.mark.parametrize("seed", [*range(2), *nightly(range(2, 12))])
def test_no_random_plan_beats_enumeration(seed):
    problem = small(seed, most_gpus=5, most_layers=5, most_batch=4)
    best = brute_force(problem.contexts, problem.cluster, problem.settings, MOST).best
    found = list(sample(problem.contexts, problem.cluster, problem.settings, np.random.default_rng(seed), 40))
    assert found
    assert min(found) >= best * (1 - 1e-9)


def pinned(seed: int) -> Small:
    """Return a problem with something pinned that is no degree."""
    return small(seed, most_gpus=6, most_layers=6, pins=PINS[seed % len(PINS)])


def against_enumeration(problem: Small, slowest: float) -> None:
    """Compare what the search finds with enumeration: its plan may take `slowest` times the optimum."""
    found = solved(problem, gap=0.5 * BEST_OF_ALL)
    seconds = found.plans[0][0] if found.plans else np.inf
    best = brute_force(problem.contexts, problem.cluster, problem.settings, MOST, seconds, space=problem.space).best
    assert bool(found.plans) == np.isfinite(best)
    assert found.bound <= best * (1 + 1e-9)
    assert not found.plans or seconds <= slowest * best
    if seconds <= found.bound * (1 + BEST_OF_ALL):
        assert best >= seconds * (1 - BEST_OF_ALL)
