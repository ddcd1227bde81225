"""What machines hold of a run's state, as rows of JSON data too, and the newest step of which every element survives
somewhere. No PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from shardwright.records import record
from shardwright.recovery.transfer import CLOUD, DISK, MEMORY
from shardwright.rows import grouped
from shardwright.runtime.state.pieces import CutShape, StatePiece, StoredPiece, overlaps

Key = tuple[StatePiece, str]  # what a shard is: a piece and the hash of its content
Shapes = Mapping[str, CutShape]
Kinds = Mapping[str, tuple[str, ...]]  # the kinds of state of every parameter
Rows = list[list[Any]]


@record
class HeldPiece:
    """A piece of the state after `step` steps, in a tier of a machine ("" for the cloud). It was written by ranks of
    generation `generation`, and those of one generation fit together."""

    machine: str
    tier: int
    step: int
    generation: int
    stored: StoredPiece

    @property
    def key(self) -> Key:
        return self.stored.piece, self.stored.hash


@record
class SurvivingState:
    """A step of which everything survives: each piece of it, without overlap, with all who hold it."""

    step: int
    pieces: Mapping[Key, tuple[HeldPiece, ...]]


def newest_state(held: Iterable[HeldPiece], shapes: Shapes, kinds: Kinds) -> SurvivingState | None:
    """Return the newest step of which all `kinds` of all parameters are held by someone, None where there is none."""
    by_step = grouped((item.step, item) for item in held)
    for step in sorted(by_step, reverse=True):
        for fitting in _fitting(by_step[step]):
            pieces = cover(fitting, shapes, kinds)
            if pieces is not None:
                return SurvivingState(step=step, pieces=pieces)
    return None


def _fitting(held: Sequence[HeldPiece]) -> Iterator[list[HeldPiece]]:
    """Yield what the ranks of one generation wrote of a step, with all who hold it, newest generation first; then all
    of it. Two generations may have cut a parameter in different ways, so that pieces of one hide those of another."""
    generations = sorted({item.generation for item in held}, reverse=True)
    for generation in generations:
        written = {item.key for item in held if item.generation == generation}
        yield [item for item in held if item.key in written]
    if len(generations) > 1:
        yield list(held)


def cover(held: Sequence[HeldPiece], shapes: Shapes, kinds: Kinds) -> dict[Key, tuple[HeldPiece, ...]] | None:
    """Return pieces that have every element once, with their holders, None where something is missing."""
    by_place: dict[tuple[str, str], dict[Key, list[HeldPiece]]] = {}
    for item in held:
        place = item.stored.piece.kind, item.stored.piece.parameter
        by_place.setdefault(place, {}).setdefault(item.key, []).append(item)
    covering: dict[Key, tuple[HeldPiece, ...]] = {}
    for name, shape in shapes.items():
        for kind in kinds[name]:
            chosen = _disjoint(by_place.get((kind, name), {}), shape)
            if sum(key[0].elements for key in chosen) < prod(shape.shape):
                return None
            covering |= {key: tuple(by_place[kind, name][key]) for key in chosen}
    return covering


def _disjoint(holders: Mapping[Key, Sequence[HeldPiece]], shape: CutShape) -> list[Key]:
    """Return pieces that do not overlap: first those that most machines hold, then the newest generation's. Where two
    machines have different content for a piece, it is the one that more of them have."""
    ranked = sorted(
        holders,
        key=lambda key: (-max(item.generation for item in holders[key]), key[0], -_machines(holders[key]), key[1]),
    )
    chosen: list[Key] = []
    for key in ranked:
        if not any(_overlap(key[0], other[0], shape) for other in chosen):
            chosen.append(key)
    return chosen


def _overlap(piece: StatePiece, other: StatePiece, shape: CutShape) -> bool:
    if (piece.start, piece.stop) == (other.start, other.stop):
        return piece.low < other.high and other.low < piece.high
    return bool(overlaps(piece, other, shape))


def _machines(items: Sequence[HeldPiece]) -> int:
    return len({item.machine for item in items})


def disagreements(held: Iterable[HeldPiece]) -> list[str]:
    """Return in words where machines hold different content of the same piece of the same step of one generation: what
    two generations computed of a step may differ in the order of its sums."""
    contents: dict[tuple[int, int, StatePiece], dict[str, set[str]]] = {}
    for item in held:
        place = item.step, item.generation, item.stored.piece
        contents.setdefault(place, {}).setdefault(item.stored.hash, set()).add(item.machine)
    return [
        f"step {step}: the {piece.name} differs between {' and '.join(sorted(min(m) for m in by_hash.values()))}"
        for (step, _, piece), by_hash in sorted(contents.items())
        if len(by_hash) > 1
    ]


def held_row(item: HeldPiece) -> list[Any]:
    """Return a holding as JSON data."""
    s, p = item.stored, item.stored.piece
    piece = [p.kind, p.parameter, p.start, p.stop, p.low, p.high]
    return [item.machine, item.tier, item.step, item.generation, s.file, s.offset, s.bytes, s.dtype, s.hash, piece]


def held_of(row: Sequence[Any]) -> HeldPiece:
    """Return the holding of a row of JSON data."""
    machine, tier, step, generation, file, offset, size, dtype, content, piece = row
    if tier not in (MEMORY, DISK, CLOUD):
        raise ValueError(f"no tier {tier}")
    kind, parameter, start, stop, low, high = piece
    return HeldPiece(
        machine=machine,
        tier=tier,
        step=step,
        generation=generation,
        stored=StoredPiece(
            piece=StatePiece(kind=kind, parameter=parameter, start=start, stop=stop, low=low, high=high),
            file=file,
            offset=offset,
            bytes=size,
            dtype=dtype,
            hash=content,
        ),
    )


def rows_of(pieces: Sequence[StoredPiece]) -> Rows:
    return [[*_fields(s.piece), s.offset, s.bytes, s.dtype, s.hash, s.file] for s in pieces]


def pieces_of(rows: Sequence[Sequence[Any]], file: str | None = None) -> tuple[StoredPiece, ...]:
    """Return the pieces of JSON data, in `file` if it is given."""
    return tuple(_stored(row, file) for row in rows)


def _stored(row: Sequence[Any], file: str | None) -> StoredPiece:
    kind, parameter, start, stop, low, high, offset, size, dtype, content, named = row
    piece = StatePiece(kind=kind, parameter=parameter, start=start, stop=stop, low=low, high=high)
    where = named if file is None else file
    return StoredPiece(piece=piece, file=where, offset=offset, bytes=size, dtype=dtype, hash=content)


def _fields(piece: StatePiece) -> tuple[Any, ...]:
    return piece.kind, piece.parameter, piece.start, piece.stop, piece.low, piece.high
