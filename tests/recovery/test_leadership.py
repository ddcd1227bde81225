"""Which machine coordinates: all that ask the same machines find the same one."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from shardwright.recovery.quorum import Address, Generation, Machine, Standing, leader_of

NAMES = range(6)


def address(number: int) -> Address:
    return f"10.0.0.{number}", 29400


def generation(number: int, members: Collection[int]) -> Generation:
    machines = (Machine(name=f"m{n}", host=address(n)[0], port=address(n)[1], gpu="A", gpus=1) for n in members)
    return Generation(number=number, machines=tuple(machines) if number else ())


def standing(name: int, number: int, members: Collection[int] = (), leader: int | None = None) -> Standing:
    at = None if leader is None else address(leader)
    return Standing(address=address(name), generation=generation(number, members), leader=at)


@st.composite
def fleets(draw: st.DrawFn) -> list[Standing]:
    """Machines that remember some of a run's generations, which have the machines that they have."""
    every = [draw(st.permutations(NAMES)) for _ in range(4)]
    sizes = [draw(st.integers(1, len(NAMES))) for _ in every]
    found = []
    for name in sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1))):
        was = [number for number, size in enumerate(sizes) if number and name in every[number][:size]]
        number = draw(st.sampled_from([0, *was]))
        leader = draw(st.sampled_from([None, name, *NAMES]))
        found.append(standing(name, number, every[number][: sizes[number]], leader))
    return found


@given(fleets(), st.randoms(use_true_random=False))
def test_all_that_see_the_same_choose_one_that_remembers_the_newest_generation(fleet: list[Standing], random) -> None:
    chosen = leader_of(fleet, address(0))
    shuffled = [*fleet]
    random.shuffle(shuffled)
    assert leader_of(shuffled, address(0)) == chosen
    newest = max(one.generation.number for one in fleet)
    leading = [one for one in fleet if one.generation.number == newest and one.leader == one.address]
    if chosen is None:
        assert newest == 0 and not leading and address(0) not in [one.address for one in fleet]
    else:
        (found,) = (one for one in fleet if one.address == chosen)
        assert found.generation.number == newest
        assert found in leading or not leading


def test_a_returning_machine_finds_a_coordinator_outside_its_own_generation() -> None:
    """Machine 3 came, and coordinates after 1 was lost; 2 alone is of the generation that 0 remembers."""
    fleet = [standing(0, 5, (0, 1, 2)), standing(2, 7, (3, 2), leader=3), standing(3, 7, (3, 2), leader=3)]
    assert leader_of(fleet, address(0)) == address(3)


def test_the_first_of_all_leads_nothing_where_others_remember_a_generation() -> None:
    anew = standing(0, 0, leader=0)
    others = [standing(1, 4, (0, 1, 2)), standing(2, 4, (0, 1, 2))]
    assert leader_of([anew, *others], address(0)) == address(1)
    assert leader_of([anew], address(0)) == address(0), "it waits for the others, who may all have been started anew"


def test_a_coordinator_that_the_run_went_on_without_is_passed_over() -> None:
    behind, ahead = standing(0, 5, (0, 1, 2), leader=0), standing(1, 6, (1, 2))
    assert leader_of([behind, ahead], address(0)) == address(1)


def test_of_two_groups_that_went_on_apart_and_count_alike_all_choose_the_same() -> None:
    alone, others = standing(0, 6, (0,), leader=0), [standing(n, 6, (1, 2), leader=1) for n in (1, 2)]
    assert {leader_of(seen, address(0)) for seen in ([alone, *others], [*others, alone])} == {address(1)}
    twins = [standing(0, 6, (0, 3), leader=0), standing(1, 6, (1, 2), leader=1)]
    assert {leader_of(seen, address(0)) for seen in (twins, twins[::-1])} == {address(0)}


def test_nobody_is_taken_for_a_coordinator_on_hearsay() -> None:
    """Machine 2 has not noticed yet that 0 is gone."""
    fleet = [standing(1, 5, (0, 1, 2)), standing(2, 5, (0, 1, 2), leader=0)]
    assert leader_of(fleet, address(0)) == address(1)
