"""Which pieces of the state each rank and each machine of a plan holds, and so needs to go on. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from shardwright.plans.plan import Plan
from shardwright.recovery.quorum import Machine
from shardwright.recovery.seats import RankSeat, seated, seats, stand_ins
from shardwright.recovery.transfer import CLOUD, Bandwidths, Holdings, Needs, TransferPlan, plan_transfers
from shardwright.runtime.layout.groups import Layout, layout_of
from shardwright.runtime.layout.places import Place
from shardwright.runtime.recovery.inventory import HeldPiece, Key, Kinds, Shapes, SurvivingState
from shardwright.runtime.state.buckets import buckets_of
from shardwright.runtime.state.holdings import holdings_of
from shardwright.runtime.state.pieces import StatePiece, overlaps


def held_pieces(layout: Layout, place: Place, kinds: Kinds) -> tuple[StatePiece, ...]:
    """Return all that a rank updates: the whole of its buckets, or its part where the optimizer is sharded."""
    found, every = [], tuple(dict.fromkeys(chain.from_iterable(kinds.values())))
    sharded = layout.plan.optimizer.distributed
    for bucket in buckets_of(layout, place):
        start, stop = bucket.own(place.rank, sharded=sharded)
        for kind in every:
            held = holdings_of(bucket, start, stop, layout.plan.model.vocab, kind)
            found += [item.piece for item in held if kind in kinds[item.piece.parameter]]
    return tuple(found)


def machine_pieces(layout: Layout, where: Sequence[RankSeat], kinds: Kinds) -> dict[str, set[StatePiece]]:
    """Return for each machine all that its ranks update."""
    found: dict[str, set[StatePiece]] = {seat.machine: set() for seat in where}
    for place in layout.places:
        found[where[place.rank].machine].update(held_pieces(layout, place, kinds))
    return found


def shares_of(pieces: Mapping[str, Collection[StatePiece]]) -> dict[str, frozenset[StatePiece]]:
    """Return which of the pieces that machines hold each is to upload: every piece once, about as much each."""
    holders: dict[StatePiece, list[str]] = {}
    for name in sorted(pieces):
        for piece in pieces[name]:
            holders.setdefault(piece, []).append(name)
    shares: dict[str, list[StatePiece]] = {name: [] for name in pieces}
    elements = dict.fromkeys(pieces, 0)
    for piece in sorted(holders):
        name = min(holders[piece], key=lambda name: (elements[name], name))
        shares[name].append(piece)
        elements[name] += piece.elements
    return {name: frozenset(share) for name, share in shares.items()}


def machine_needs(
    layout: Layout, where: Sequence[RankSeat], kinds: Kinds, state: SurvivingState, shapes: Shapes
) -> dict[str, tuple[Key, ...]]:
    """Return for each machine which pieces of a state hold something that one of its ranks needs."""
    by_place: dict[tuple[str, str], list[Key]] = {}
    for key in state.pieces:
        by_place.setdefault((key[0].kind, key[0].parameter), []).append(key)
    wanted = machine_pieces(layout, where, kinds)
    return {machine: _touched(pieces, by_place, shapes) for machine, pieces in wanted.items()}


def chairs_of(
    plan: Plan, machines: Sequence[Machine], state: SurvivingState | None, kinds: Kinds, shapes: Shapes
) -> tuple[Machine, ...]:
    """Return the machines in an order of seats in which little of a state moves."""
    if state is None:
        return tuple(machines)
    places = stand_ins(plan.cluster)
    needs = machine_needs(layout_of(plan), seats(plan, places), kinds, state, shapes)
    number = {machine.name: row for row, machine in enumerate(machines)}
    kept = np.zeros((len(machines), len(places)))
    for column, place in enumerate(places):
        for key in needs.get(place.name, ()):
            rows = {number[held.machine] for held in state.pieces[key] if held.machine in number}
            kept[list(rows), column] += key_bytes(state, key)
    return seated(plan, machines, kept)


def _touched(
    pieces: Iterable[StatePiece], by_place: Mapping[tuple[str, str], Sequence[Key]], shapes: Shapes
) -> tuple[Key, ...]:
    found: dict[Key, None] = {}
    for piece in sorted(pieces):
        for key in by_place.get((piece.kind, piece.parameter), ()):
            if key not in found and overlaps(key[0], piece, shapes[piece.parameter]):
                found[key] = None
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """A plan of transfers, with what its numbers stand for: shards and machines."""

    plan: TransferPlan
    keys: tuple[Key, ...]
    machines: tuple[str, ...]


def movement(
    state: SurvivingState, needs: Mapping[str, Sequence[Key]], machines: Sequence[str], bandwidths: Bandwidths
) -> Movement:
    """Return what moves from where to where so that every machine has what it needs of a state."""
    keys, names = tuple(state.pieces), tuple(machines)
    number, row = {key: n for n, key in enumerate(keys)}, {name: n for n, name in enumerate(names)}
    wanted = [(number[key], row[name]) for name in names for key in needs.get(name, ())]
    held = [
        (number[key], row[item.machine], item.tier)
        for key, items in state.pieces.items()
        for item in items
        if item.tier != CLOUD and item.machine in row
    ]
    shard, machine = _columns(wanted, 2)
    held_shard, held_machine, tier = _columns(held, 3)
    in_cloud = np.array([any(item.tier == CLOUD for item in items) for items in state.pieces.values()], dtype=bool)
    sizes = np.array([key_bytes(state, key) for key in keys], dtype=np.int64)
    plan = plan_transfers(
        sizes,
        Needs(shard=shard, machine=machine),
        Holdings(shard=held_shard, machine=held_machine, tier=tier),
        in_cloud,
        bandwidths,
    )
    return Movement(plan=plan, keys=keys, machines=names)


def key_bytes(state: SurvivingState, key: Key) -> int:
    """Return the bytes of a piece."""
    return state.pieces[key][0].stored.bytes


def holder(items: Sequence[HeldPiece], machine: str, tier: int) -> HeldPiece:
    """Return the holding of a piece on a machine in a tier."""
    return next(item for item in items if item.machine == machine and item.tier == tier)


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array(rows, dtype=np.int64).reshape(-1, width).T)
