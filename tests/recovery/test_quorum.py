"""Which machines may be the next generation: never two groups at once."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from shardwright.recovery.quorum import Claim, Generation, Machine, gives_way, next_generation, quorum


def generation(count: int) -> Generation:
    machines = (Machine(name=f"m{n}", host="h", port=n + 1, gpu="A100", gpus=8) for n in range(count))
    return Generation(number=3, machines=tuple(machines))


@given(st.integers(1, 7), st.data())
def test_of_two_groups_without_a_machine_in_common_at_most_one_goes_on_alone(count: int, data: st.DataObject) -> None:
    before = generation(count)
    one = data.draw(st.sets(st.sampled_from(before.names)))
    other = set(before.names) - one
    free = [quorum(before, group).majority for group in (one, other)]
    assert sum(free) == 1, "and one of two halves always does"


def test_any_majority_goes_on_without_those_that_begin() -> None:
    before = generation(5)
    for present in combinations(before.names, 3):
        assert quorum(before, present) == quorum(before, (*present, "new"))
        assert quorum(before, present).majority


@given(st.integers(2, 6), st.data())
def test_no_group_goes_on_beside_one_that_was_first(count: int, data: st.DataObject) -> None:
    """Groups that an arbiter lets go on have a machine in common, which has left the one for the other."""
    before, groups = generation(count), st.sets(st.sampled_from(generation(count).names), min_size=1)
    first, other = (claim_of(before, data.draw(groups)) for _ in range(2))
    if not gives_way(other, first):
        assert set(first.machines) & set(other.machines)
        assert first.majority or set(first.machines) <= set(other.machines) or first.by == other.by


def test_a_majority_goes_on_with_the_minority_that_claimed_and_could_not_start() -> None:
    before = generation(3)
    first = claim_of(before, {"m1"})
    assert (first.majority, str(first)) == (False, "m1 with a minority")
    assert gives_way(claim_of(before, {"m0", "m2"}), first), "m1 may be training"
    assert not any(gives_way(claim_of(before, names), first) for names in ({"m1"}, {"m1", "m2"}, {"m0", "m1"}))
    assert gives_way(first, claim_of(before, {"m0", "m1"})), "m0 may be training with another"


def test_machines_that_are_gone_hold_nobody_up() -> None:
    """Where nobody listens at their addresses, they train nowhere: their claim stands against nobody."""
    before = generation(3)
    majority, minority = claim_of(before, {"m0", "m1"}), claim_of(before, {"m0"})
    assert gives_way(minority, majority) and not gives_way(minority, majority, {"m1"})
    assert gives_way(claim_of(before, {"m2"}), majority, {"m1"}), "m0 may be training"
    assert not gives_way(claim_of(before, {"m1", "m2"}), minority, {"m0"})


def test_a_claim_to_follow_a_later_generation_stands_against_everybody() -> None:
    before, later = generation(3), Claim(by="m9", machines=("m9", "m2"), majority=True)
    assert gives_way(claim_of(before, {"m0", "m1"}), later, alone=True)
    assert not gives_way(claim_of(before, {"m0", "m2"}), later, {"m9"}, alone=True)
    assert not gives_way(later, later, alone=True), "its own claim, when it tries again"


def claim_of(before: Generation, names: Collection[str]) -> Claim:
    present = tuple(sorted(names))
    return Claim(by=present[0], machines=present, majority=quorum(before, present).majority)


def test_the_next_generation_keeps_the_order_and_puts_newcomers_last() -> None:
    before = generation(3)
    new = Machine(name="a-new-one", host="h", port=9, gpu="A100", gpus=8)
    found = next_generation(before, [new, before.machines[2], before.machines[1]], 7)
    assert (found.number, found.names) == (7, ("m1", "m2", "a-new-one"))
