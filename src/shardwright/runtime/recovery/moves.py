"""A plan of transfers as orders to keepers: what each reads from whom. No PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardwright.recovery.quorum import Machine
from shardwright.recovery.transfer import CLOUD, DISK, MEMORY, NOWHERE
from shardwright.runtime.recovery.fetch import PieceSource, Wanted
from shardwright.runtime.recovery.inventory import SurvivingState
from shardwright.runtime.recovery.needs import Movement, holder
from shardwright.runtime.recovery.rows import Rows, rows_of, wanted_row

Range = tuple[int, int, int, int]
"""Source machine, tier, first byte, last byte."""


def orders_of(moves: Movement, state: SurvivingState, machines: Sequence[Machine]) -> dict[str, dict[str, Any]]:
    """Return for each machine the pieces of its own that it has to verify, by tier, and those that it has to read."""
    by_name = {machine.name: machine for machine in machines}
    found = {}
    for number, name in enumerate(moves.machines):
        own: dict[str, Rows] = {str(MEMORY): [], str(DISK): []}
        wanted: list[Any] = []
        offset = 0
        for shard, ranges in _ranges(moves, number).items():
            items = state.pieces[moves.keys[shard]]
            if len(ranges) == 1 and ranges[0][0] == number:
                own[str(ranges[0][1])] += rows_of([holder(items, name, ranges[0][1]).stored])
                continue
            sources = tuple(_source(moves, state, shard, one, name, by_name) for one in ranges)
            stored = replace(items[0].stored, file="", offset=offset)
            wanted.append(wanted_row(Wanted(stored=stored, sources=sources)))
            offset += stored.bytes
        found[name] = {"own": own, "wanted": wanted}
    return found


def _ranges(moves: Movement, target: int) -> dict[int, list[Range]]:
    t = moves.plan.transfers
    found: dict[int, list[Range]] = {}
    for row in (t.target == target).nonzero()[0].tolist():
        one = (int(t.source[row]), int(t.tier[row]), int(t.start[row]), int(t.stop[row]))
        found.setdefault(int(t.shard[row]), []).append(one)
    return found


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
