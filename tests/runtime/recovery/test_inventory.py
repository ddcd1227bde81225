"""What survives on several machines: the newest step that is whole, each element once, damage left out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shardwright.recovery.transfer import DISK, MEMORY
from shardwright.runtime.recovery.state.inventory import (
    HeldPiece,
    cover,
    disagreements,
    held_of,
    held_row,
    newest_state,
)
from shardwright.runtime.recovery.state.transfers import shares_of
from shardwright.runtime.state.pieces import CutShape, StatePiece, StoredPiece

SHAPES, KINDS = {"a": CutShape(shape=(8, 2))}, {"a": ("weight",)}


def held(machine: str, step: int, low: int, high: int, *, content: str = "", generation: int = 1) -> HeldPiece:
    """Elements [low, high) of the whole parameter."""
    piece = StatePiece(kind="weight", parameter="a", start=0, stop=8, low=low, high=high)
    size = 4 * (high - low)
    stored = StoredPiece(
        piece=piece, file="f", offset=0, bytes=size, dtype="float32", hash=content or f"{step}-{low}-{high}"
    )
    return HeldPiece(machine=machine, tier=MEMORY, step=step, generation=generation, stored=stored)


def test_the_newest_step_that_is_whole_wins() -> None:
    old = [held("m0", 10, 0, 8), held("m1", 10, 8, 16)]
    half = [held("m0", 20, 0, 8)]
    state = newest_state([*old, *half], SHAPES, KINDS)
    assert state is not None and state.step == 10
    state = newest_state([*old, *half, held("m2", 20, 8, 16)], SHAPES, KINDS)
    assert state is not None and state.step == 20
    assert newest_state(half, SHAPES, KINDS) is None


def test_all_holders_of_a_piece_are_known() -> None:
    found = cover([held("m0", 10, 0, 16), replace(held("m1", 10, 0, 16), tier=DISK)], SHAPES, KINDS)
    assert found is not None
    ((_, holders),) = found.items()
    assert {(item.machine, item.tier) for item in holders} == {("m0", MEMORY), ("m1", DISK)}


def test_pieces_of_one_generation_are_taken_together() -> None:
    old = [held("m0", 10, 0, 8), held("m0", 10, 8, 16)]
    new = [held("m1", 10, 0, 4, generation=2), held("m1", 10, 4, 16, generation=2)]
    found = cover([*old, *new], SHAPES, KINDS)
    assert found is not None and {key[0].low for key in found} == {0, 4}


def test_pieces_of_a_newer_generation_that_are_not_all_there_hide_no_older_ones() -> None:
    """Two thirds of a step by the newer generation, and halves of the same step by the one before."""
    newer = [held("m1", 10, 0, 5, generation=2), held("m2", 10, 5, 10, generation=2)]
    older = [held("", 10, 0, 8, generation=0), held("", 10, 8, 16, generation=0)]
    state = newest_state([*newer, *older], SHAPES, KINDS)
    assert state is not None and {key[0].low for key in state.pieces} == {0, 8}
    rest = [held("", 10, 0, 5, generation=0), held("", 10, 5, 10, generation=0), held("", 10, 10, 16, generation=0)]
    state = newest_state([*newer, *rest], SHAPES, KINDS)
    assert state is not None
    assert sorted({item.machine for items in state.pieces.values() for item in items}) == ["", "m1", "m2"]


def test_where_content_differs_most_machines_are_right_and_it_is_told() -> None:
    items = [held("m0", 10, 0, 16, content="bad"), held("m1", 10, 0, 16), held("m2", 10, 0, 16)]
    found = cover(items, SHAPES, KINDS)
    assert found is not None and [key[1] for key in found] == ["10-0-16"]
    (words,) = disagreements(items)
    assert words == "step 10: the weight of a[0:8] elements 0:16 differs between m0 and m1"


def test_rows_carry_all_of_a_holding() -> None:
    item = held("m0", 10, 0, 16)
    assert held_of(held_row(item)) == item


@given(st.dictionaries(st.sampled_from("abcd"), st.sets(st.integers(0, 20), min_size=1), min_size=1))
def test_every_piece_is_uploaded_once_by_a_machine_that_holds_it(numbers: dict[str, set[int]]) -> None:
    pieces = {
        name: {StatePiece(kind="weight", parameter=f"{n}", start=0, stop=8, low=0, high=8) for n in found}
        for name, found in numbers.items()
    }
    shares = shares_of(pieces)
    assert all(shares[name] <= pieces[name] for name in pieces)
    assert sorted(piece for share in shares.values() for piece in share) == sorted(set().union(*pieces.values()))
    alike = dict.fromkeys("abc", pieces[min(pieces)])
    assert max(map(len, shares_of(alike).values())) - min(map(len, shares_of(alike).values())) <= 1
