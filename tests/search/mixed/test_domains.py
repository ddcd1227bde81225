"""However replicas stand in machines by a rank order, one of the ways that bounds tell apart is as good or better."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shardwright.search.mixed.subproblem.domains import ways_of, ways_of_alike

GROUPS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), min_size=1, max_size=4)


def standing(groups: list[tuple[int, int]], *, copies_together: bool) -> list[tuple[int, int, int]]:
    """Return the replica, group and stage of each unit of a type, in rank order (`plans.placement`). A group has so many
    equal replicas of so many stages on the type."""
    units, replica = [], 0
    for group, (copies, stages) in enumerate(groups):
        pairs = [(copy, stage) for copy in range(copies) for stage in range(stages)]
        if copies_together:
            pairs.sort(key=lambda pair: (pair[1], pair[0]))
        units += [(replica + copy, group, stage) for copy, stage in pairs]
        replica += copies
    return units


@given(groups=GROUPS, period=st.integers(1, 8), copies_together=st.booleans())
def test_some_way_is_as_good_as_how_a_replica_stands(
    groups: list[tuple[int, int]], period: int, copies_together: bool
) -> None:
    units = standing(groups, copies_together=copies_together)
    replicas = sum(copies for copies, _ in groups)
    first = 0
    for copies, stages in groups:
        domains = [place // period for place, unit in enumerate(units) if unit[0] == first]
        leaves = [here != there for here, there in pairwise(domains)]
        crowd = [len({unit[0] for unit in units[period * domain : period * (domain + 1)]}) for domain in domains]
        assert any(
            all(real >= said for real, said in zip(leaves, way_leaves, strict=False))
            and all(real <= said for real, said in zip(crowd, most, strict=True))
            for way_leaves, most in ways_of(stages, period, replicas)
        ), (domains, ways_of(stages, period, replicas))
        first += copies


@given(copies=st.integers(2, 6), stages=st.integers(1, 20), period=st.integers(1, 8), copies_together=st.booleans())
def test_replicas_that_are_alike_stand_as_the_rank_order_says(
    copies: int, stages: int, period: int, copies_together: bool
) -> None:
    units = standing([(copies, stages)], copies_together=copies_together)
    first = [place // period for place, (replica, _, _) in enumerate(units) if replica == 0]
    leaves = (*(here != there for here, there in pairwise(first)), False)
    crowd = []
    for stage in range(stages):
        domains = [place // period for place, unit in enumerate(units) if unit[2] == stage]
        fewest = min(domains.count(domain) for domain in set(domains))
        crowd.append(1 << 30 if fewest == copies else fewest)
    assert (leaves, tuple(crowd)) in ways_of_alike(stages, period, copies)


def test_ways_say_what_matters() -> None:
    free = (False,) * 3, ((1 << 30),) * 3
    assert ways_of(3, 8, 2) == [free], "both copies of three stages find room in a machine of eight units"
    assert ways_of(3, 0, 2) == [free], "machines of several sizes are not told apart"
    assert [leaves for leaves, _ in ways_of(9, 8, 1)] == [(*[False] * 7, True, False)], "one replica begins a machine"
    alone, *others = ways_of(2, 2, 2)
    assert alone == ((False, False), (1, 1)), "a replica that fills a machine shares it with no copy"
    assert [leaves for leaves, _ in others] == [(True, False)]
