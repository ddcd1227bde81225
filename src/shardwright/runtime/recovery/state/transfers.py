"""How the state of a run moves: which pieces each machine of a plan needs, the transfers that bring them there, those
as orders to keepers, and reading them: from other keepers, this machine's disk, the object store. No PyTorch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.quorum import Machine, RankSeat, seated, seats, stand_ins
from shardwright.recovery.transfer import (
    CLOUD,
    DISK,
    MEMORY,
    NOWHERE,
    TIERS,
    Bandwidths,
    Holdings,
    Needs,
    TransferPlan,
    plan_transfers,
)
from shardwright.rows import grouped
from shardwright.runtime.layout.groups import Layout, Place, layout_of
from shardwright.runtime.recovery.state.inventory import (
    HeldPiece,
    Key,
    Kinds,
    Rows,
    Shapes,
    SurvivingState,
    pieces_of,
    rows_of,
)
from shardwright.runtime.recovery.state.snapshots import is_sound, reserve
from shardwright.runtime.recovery.wire import Channel, LostError, RefusedError, connect, refuse
from shardwright.runtime.state.buckets import buckets_of
from shardwright.runtime.state.pieces import StatePiece, StoredPiece, holdings_of, overlaps


def held_pieces(layout: Layout, place: Place, kinds: Kinds) -> tuple[StatePiece, ...]:
    """Return all that a rank updates: the whole of its buckets, or its part where the optimizer is sharded."""
    pieces, every = [], tuple(dict.fromkeys(chain.from_iterable(kinds.values())))
    sharded = layout.plan.optimizer.distributed
    for bucket in buckets_of(layout, place):
        start, stop = bucket.own(place.rank, sharded=sharded)
        for kind in every:
            held = holdings_of(bucket, start, stop, layout.plan.model.vocab, kind)
            pieces += [item.piece for item in held if kind in kinds[item.piece.parameter]]
    return tuple(pieces)


def machine_pieces(layout: Layout, where: Sequence[RankSeat], kinds: Kinds) -> dict[str, set[StatePiece]]:
    """Return for each machine all that its ranks update."""
    pieces: dict[str, set[StatePiece]] = {seat.machine: set() for seat in where}
    for place in layout.places:
        pieces[where[place.rank].machine].update(held_pieces(layout, place, kinds))
    return pieces


def shares_of(pieces: Mapping[str, Collection[StatePiece]]) -> dict[str, frozenset[StatePiece]]:
    """Return which of the pieces that machines hold each is to upload: every piece once, about as much each."""
    holders = grouped((piece, name) for name in sorted(pieces) for piece in pieces[name])
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
    by_place = grouped(((key[0].kind, key[0].parameter), key) for key in state.pieces)
    wanted = machine_pieces(layout, where, kinds)
    return {machine: _touched(pieces, by_place, shapes) for machine, pieces in wanted.items()}


def seat_order(
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
    touched: dict[Key, None] = {}
    for piece in sorted(pieces):
        for key in by_place.get((piece.kind, piece.parameter), ()):
            if key not in touched and overlaps(key[0], piece, shapes[piece.parameter]):
                touched[key] = None
    return tuple(touched)


@record
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
    plan = plan_transfers(
        np.array([key_bytes(state, key) for key in keys], dtype=np.int64),
        Needs(shard=shard, machine=machine),
        Holdings(shard=held_shard, machine=held_machine, tier=tier),
        in_cloud,
        bandwidths,
    )
    return Movement(plan=plan, keys=keys, machines=names)


def moved_bytes(moves: Movement) -> dict[str, int]:
    """Return the bytes that a plan of transfers moves, by where they come from."""
    t, sizes = moves.plan.transfers, dict[str, int]()
    for place, local in (("own", True), ("peers'", False)):
        for tier, name in enumerate(TIERS[:2]):
            sizes[f"{place} {name}"] = int(t.size_bytes[(t.tier == tier) & (t.local == local)].sum())
    return sizes | {"cloud": int(t.size_bytes[t.tier == len(TIERS) - 1].sum())}


def key_bytes(state: SurvivingState, key: Key) -> int:
    return state.pieces[key][0].stored.bytes


def holder(items: Sequence[HeldPiece], machine: str, tier: int) -> HeldPiece:
    return next(item for item in items if item.machine == machine and item.tier == tier)


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array(rows, dtype=np.int64).reshape(-1, width).T)


Range = tuple[int, int, int, int]  # source machine, tier, first byte, last byte


def orders_of(moves: Movement, state: SurvivingState, machines: Sequence[Machine]) -> dict[str, dict[str, Any]]:
    """Return for each machine the pieces of its own that it has to verify, by tier, and those that it has to read."""
    by_name = {machine.name: machine for machine in machines}
    orders = {}
    for number, name in enumerate(moves.machines):
        kept: dict[str, Rows] = {str(MEMORY): [], str(DISK): []}
        wanted: list[Any] = []
        offset = 0
        for shard, ranges in _ranges(moves, number).items():
            items = state.pieces[moves.keys[shard]]
            if len(ranges) == 1 and ranges[0][0] == number:
                kept[str(ranges[0][1])] += rows_of([holder(items, name, ranges[0][1]).stored])
                continue
            sources = tuple(_source(moves, state, shard, part, name, by_name) for part in ranges)
            stored = replace(items[0].stored, file="", offset=offset)
            wanted.append(wanted_row(Wanted(stored=stored, sources=sources)))
            offset += stored.bytes
        orders[name] = {"own": kept, "wanted": wanted}
    return orders


def _ranges(moves: Movement, target: int) -> dict[int, list[Range]]:
    t = moves.plan.transfers
    return grouped(
        (int(t.shard[row]), (int(t.source[row]), int(t.tier[row]), int(t.start[row]), int(t.stop[row])))
        for row in (t.target == target).nonzero()[0].tolist()
    )


def _source(
    moves: Movement, state: SurvivingState, shard: int, part: Range, target: str, machines: dict[str, Machine]
) -> PieceSource:
    number, tier, start, stop = part
    name = "" if number == NOWHERE else moves.machines[number]
    held = holder(state.pieces[moves.keys[shard]], name, tier).stored
    remote = tier != CLOUD and name != target
    address = (machines[name].host, machines[name].port) if remote else None
    return PieceSource(
        machine=name, address=address, tier=tier, file=held.file, offset=held.offset, start=start, stop=stop
    )


UNSOUND = "its content is not what was written"
AT_A_TIME = 8
RANGE_SECONDS = 60.0


@record
class PieceSource:
    """Bytes [start, stop) of a piece, in a file of a tier of a machine, where the piece begins at `offset`. `address`
    is that of its keeper, None for this machine and for the cloud."""

    machine: str
    address: tuple[str, int] | None
    tier: int
    file: str
    offset: int
    start: int
    stop: int


@record
class Wanted:
    """A piece as it shall lie in the file of fetched ones, and where its bytes come from."""

    stored: StoredPiece
    sources: tuple[PieceSource, ...]


@record
class Fetched:
    """The pieces that arrived as they were written, and those that did not, with the machines that were to send them
    and why."""

    pieces: tuple[StoredPiece, ...]
    failed: tuple[tuple[StoredPiece, tuple[str, ...], str], ...]


Reader = Callable[[PieceSource], Awaitable[bytes]]


async def fetch(
    wanted: Sequence[Wanted], folder: Path, file: str, readers: dict[int, Reader], secret: bytes = b""
) -> Fetched:
    """Read all pieces into one file, and verify each. `readers` read ranges from this machine's disk and the cloud, by
    tier. Raises OSError where this machine has no room."""
    size = max((item.stored.offset + item.stored.bytes for item in wanted), default=0)
    await asyncio.to_thread(reserve, folder / file, size)
    peers = Peers(secret)
    room = asyncio.Semaphore(AT_A_TIME)
    try:
        reasons = await asyncio.gather(*(_arrived(item, folder / file, readers, peers, room) for item in wanted))
    finally:
        peers.close()
    pairs = list(zip(wanted, reasons, strict=True))
    return Fetched(
        pieces=tuple(item.stored for item, reason in pairs if not reason),
        failed=tuple(
            (item.stored, tuple(source.machine for source in item.sources), reason) for item, reason in pairs if reason
        ),
    )


def wanted_row(wanted: Wanted) -> list[Any]:
    """Return a wanted piece as JSON data."""
    return [rows_of([wanted.stored])[0], [asdict(source) for source in wanted.sources]]


def wanted_of(row: Sequence[Any], file: str) -> Wanted:
    """Return the wanted piece of JSON data, which shall lie in `file`."""
    sources = (PieceSource(**item | {"address": item["address"] and tuple(item["address"])}) for item in row[1])
    return Wanted(stored=pieces_of([row[0]], file)[0], sources=tuple(sources))


class Peers:
    """Connections to other keepers, one each, made when they are needed."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._channels: dict[tuple[str, int], asyncio.Task[Channel]] = {}

    async def read(self, source: PieceSource) -> bytes:
        """Return a range from another machine. Raises LostError or RefusedError where it cannot be had."""
        assert source.address is not None, "own files are read without a connection"
        task = self._channels.get(source.address)
        if task is None:
            task = asyncio.create_task(connect(*source.address, refuse, secret=self._secret, timeout=5.0))
            self._channels[source.address] = task
        channel = await task
        start, stop = source.offset + source.start, source.offset + source.stop
        _, content = await channel.call("piece", tier=source.tier, file=source.file, start=start, stop=stop)
        return bytes(content)

    def close(self) -> None:
        for task in self._channels.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close()
            task.cancel()


async def _arrived(item: Wanted, path: Path, readers: dict[int, Reader], peers: Peers, room: asyncio.Semaphore) -> str:
    """Return why a piece has not arrived, "" if it has."""
    try:
        for source in item.sources:
            local = source.tier == CLOUD or (source.address is None and source.tier == DISK)
            async with room, asyncio.timeout(RANGE_SECONDS):
                content = await (readers[source.tier] if local else peers.read)(source)
            if len(content) != source.stop - source.start:
                return f"{UNSOUND}: {len(content):,} bytes of {source.stop - source.start:,} came"
            await asyncio.to_thread(_put, path, content, item.stored.offset + source.start)
    except TimeoutError:
        return f"it did not come within {RANGE_SECONDS:g} s"
    except (LostError, RefusedError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "" if await asyncio.to_thread(is_sound, path.parent, item.stored) else UNSOUND


def _put(path: Path, content: bytes, offset: int) -> None:
    """Write into a file. A thread that outlives its fetch has a descriptor of its own."""
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), content, offset)
