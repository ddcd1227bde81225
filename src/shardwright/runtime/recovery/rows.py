"""Stored pieces as JSON data, as keepers and workers send them. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shardwright.recovery.leadership import Standing
from shardwright.recovery.quorum import Generation, Machine
from shardwright.runtime.recovery.fetch import PieceSource, Wanted
from shardwright.runtime.state.pieces import StatePiece, StoredPiece

Rows = list[list[Any]]


def rows_of(pieces: Sequence[StoredPiece]) -> Rows:
    """Return pieces as JSON data."""
    return [[*_fields(s.piece), s.offset, s.bytes, s.dtype, s.hash, s.file] for s in pieces]


def pieces_of(rows: Sequence[Sequence[Any]], file: str | None = None) -> tuple[StoredPiece, ...]:
    """Return the pieces of JSON data, in `file` if it is given."""
    return tuple(_stored(row, file) for row in rows)


def machine_data(machine: Machine) -> dict[str, Any]:
    """Return a machine as JSON data."""
    return asdict(machine)


def machine_of(data: Mapping[str, Any]) -> Machine:
    """Return the machine of JSON data."""
    return Machine(**data)


def standing_data(standing: Standing) -> dict[str, Any]:
    """Return a standing as JSON data."""
    machines = [machine_data(machine) for machine in standing.generation.machines]
    told = {"number": standing.generation.number, "machines": machines}
    return {"address": standing.address, "generation": told, "leader": standing.leader}


def standing_of(data: Mapping[str, Any]) -> Standing:
    """Return the standing of JSON data."""
    told = data["generation"]
    generation = Generation(number=told["number"], machines=tuple(map(machine_of, told["machines"])))
    return Standing(
        address=tuple(data["address"]), generation=generation, leader=data["leader"] and tuple(data["leader"])
    )


def wanted_row(wanted: Wanted) -> list[Any]:
    """Return a wanted piece as JSON data."""
    return [rows_of([wanted.stored])[0], [asdict(source) for source in wanted.sources]]


def wanted_of(row: Sequence[Any], file: str) -> Wanted:
    """Return the wanted piece of JSON data, which shall lie in `file`."""
    sources = (PieceSource(**item | {"address": item["address"] and tuple(item["address"])}) for item in row[1])
    return Wanted(stored=pieces_of([row[0]], file)[0], sources=tuple(sources))


def _stored(row: Sequence[Any], file: str | None) -> StoredPiece:
    kind, parameter, start, stop, low, high, offset, size, dtype, content, named = row
    piece = StatePiece(kind=kind, parameter=parameter, start=start, stop=stop, low=low, high=high)
    where = named if file is None else file
    return StoredPiece(piece=piece, file=where, offset=offset, bytes=size, dtype=dtype, hash=content)


def _fields(piece: StatePiece) -> tuple[Any, ...]:
    return piece.kind, piece.parameter, piece.start, piece.stop, piece.low, piece.high
