"""When two courses of training are equal."""

from __future__ import annotations

import pytest
import torch
from tests.runtime.reference import Reference
from tests.runtime.workers import Outcome

from shardwright.runtime.state.recipe import Recipe

# Adam's steps do not shrink with gradients, so it turns rounding into steps where these are almost zero. A larger
# epsilon keeps that below what is compared, in the plans of which there is a list; SGD does so in any plan.
ADAM = Recipe(learning_rate=3e-3, clip=1.0, epsilon=1e-5)
# A bias starts at zero and goes where some of Adam's steps take it, back and forth: what processors round differently
# in a step counts against the length of that way in five steps, not against the little that may be left of it.
WAY = 5 * ADAM.learning_rate
SGD = Recipe(method="sgd", learning_rate=0.3, clip=0.5, weight_decay=0.01)


def require_equal(found: Outcome, expected: Reference, *, rounded: bool = False) -> None:
    """Losses, that on held-out samples, and final weights to a relative 1e-5 in fp32, vectors to that of the way they
    went, gradient norms to 1e-4; padding stays zero. Weights are to 1e-4 where state is `rounded`: what differs in the
    last bit may go to another code."""
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert found.norms == pytest.approx(expected.norms, rel=1e-4)
    assert found.held_out == pytest.approx(expected.held_out, rel=1e-5)
    require_equal_weights(found, expected, rounded=rounded)


def require_equal_weights(found: Outcome, expected: Reference, *, rounded: bool = False) -> None:
    assert found.weights.keys() == expected.weights.keys()
    for key, weight in expected.weights.items():
        difference = found.weights[key][: len(weight)] - weight
        size = float(weight.norm()) + (WAY * len(weight) ** 0.5 if weight.dim() == 1 else 0.0)
        assert float(difference.norm()) <= (1e-4 if rounded else 1e-5) * size + 1e-7, key
        assert not torch.count_nonzero(found.weights[key][len(weight) :]), "padding stays zero"
