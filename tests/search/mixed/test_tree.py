"""The branch-and-bound loop against enumeration: ways to choose one of the costs of each row, at the least sum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from shardwright.search.mixed.branch_and_bound.tree import (
    Branched,
    Pruned,
    Rebounded,
    Step,
    TreeNode,
    Undecided,
    least_bound,
)

Chosen = tuple[tuple[int, ...], bool]  # so far, and whether the bound is its own


class Sums:
    """Costs [R, C] that are worth more together than apart: neighbours add the product of their indices."""

    def __init__(self, seed: int) -> None:
        self.costs = np.random.default_rng(seed).integers(1, 20, (5, 4)).astype(float)
        self.incumbent = np.inf

    def value(self, chosen: tuple[int, ...]) -> float:
        apart = sum(self.costs[row, one] for row, one in enumerate(chosen))
        return float(apart + sum(one * other for one, other in itertools.pairwise(chosen)))

    def least(self) -> float:
        return min(self.value(chosen) for chosen in itertools.product(range(4), repeat=5))

    def bound(self, most: int) -> float:
        return least_bound(
            [(0.0, ((), False))], self.processed, cutoff=lambda: self.incumbent, spent=lambda count: count >= most
        )

    def processed(self, node: TreeNode[Chosen]) -> Step[Chosen]:
        chosen, bounded = node.part
        assert node.proven <= node.bound
        if not bounded:
            rest = float(self.costs[len(chosen) :].min(axis=1).sum())
            return Rebounded(max(node.bound, self.value(chosen) + rest), (chosen, True))
        if len(chosen) == len(self.costs):
            self.incumbent = min(self.incumbent, self.value(chosen))
            return Pruned()
        return Branched([(node.bound, ((*chosen, one), False)) for one in range(4)])


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_of_a_whole_tree_is_the_optimum(seed):
    sums = Sums(seed)
    assert sums.bound(10_000) == sums.incumbent == sums.least()


@pytest.mark.parametrize("most", [0, 1, 5, 20])
def test_a_search_that_ends_early_proves_no_more_than_is_true(most):
    for seed in range(10):
        assert Sums(seed).bound(most) <= Sums(seed).least()


def test_what_stays_undecided_counts_with_its_bound():
    def processed(node: TreeNode[int]) -> Step[int]:
        return Undecided(node.bound + 1.0) if node.part else Pruned()

    assert least_bound([(1.0, 0), (2.0, 1), (7.0, 1)], processed, cutoff=lambda: 5.0, spent=lambda _: False) == 3.0
    assert least_bound([(6.0, 1)], processed, cutoff=lambda: 5.0, spent=lambda _: False) == 5.0
