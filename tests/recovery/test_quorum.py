"""Which machines may be the next generation: never two groups at once."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from shardwright.recovery.quorum import Generation, Machine, next_generation, quorum


def generation(count: int) -> Generation:
    machines = (Machine(name=f"m{n}", host="h", port=n + 1, gpu="A100", gpus=8) for n in range(count))
    return Generation(number=3, machines=tuple(machines))


@given(st.integers(1, 7), st.data())
def test_of_two_groups_without_a_machine_in_common_at_most_one_goes_on_alone(count: int, data: st.DataObject) -> None:
    before = generation(count)
    one = data.draw(st.sets(st.sampled_from(before.names)))
    other = set(before.names) - one
    free = [found.may_go_on and not found.needs_arbiter for found in (quorum(before, [*one]), quorum(before, [*other]))]
    assert sum(free) == 1, "and one of two halves always does"


def test_any_majority_goes_on_without_those_that_begin() -> None:
    before = generation(5)
    for present in combinations(before.names, 3):
        assert quorum(before, present) == quorum(before, (*present, "new"))
        assert quorum(before, present).may_go_on and not quorum(before, present).needs_arbiter


def test_the_next_generation_keeps_the_order_and_puts_newcomers_last() -> None:
    before = generation(3)
    new = Machine(name="a-new-one", host="h", port=9, gpu="A100", gpus=8)
    found = next_generation(before, [new, before.machines[2], before.machines[1]])
    assert (found.number, found.names) == (4, ("m1", "m2", "a-new-one"))
