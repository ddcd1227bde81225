"""What a worker hands over to the keeper of its machine, and takes back from it: its part of the state, piece by piece
(PyTorch).

Pieces that several ranks of a machine hold alike are written by the first of them. Protecting a snapshot takes time: it
is hashed, and what nobody else holds is copied to another machine. So one is taken a tenth of the interval before it is
due; the update that would leave the last protected step further behind than the interval waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardwright.records import record
from shardwright.runtime.recovery.state.inventory import rows_of
from shardwright.runtime.recovery.state.snapshots import laid_out, reserve
from shardwright.runtime.recovery.state.transfers import held_pieces
from shardwright.runtime.recovery.worker.link import KeeperLink
from shardwright.runtime.state.pieces import DTYPES, CutShape, StatePiece, holdings_of, split, state_kinds
from shardwright.runtime.state.recipe import LossScale
from shardwright.runtime.state.slots import Slot
from shardwright.runtime.step.engine import Engine, share_weights
from shardwright.runtime.storage.manifest import LARGEST_PIECE_BYTES, Fetch, Index, Values, assemble

FP32 = "float32"


@record
class WrittenPart:
    """A piece that this rank writes: of a slot, from element `start` of the bucket on."""

    piece: StatePiece
    slot: Slot
    start: int

    def values(self) -> torch.Tensor:
        """Return its flat values, on the slot's device."""
        return self.slot.read(self.piece.kind, self.start, self.start + self.piece.elements)


def parts_of(engine: Engine, mates: Sequence[int]) -> tuple[WrittenPart, ...]:
    """Return what a rank writes: what it holds, but for what a lower rank of its machine has, one of its `mates`."""
    layout, kinds = engine.layout, state_kinds(engine.layout, engine.recipe.method)
    others = {piece for rank in mates for piece in held_pieces(layout, layout.places[rank], kinds)}
    most = LARGEST_PIECE_BYTES // DTYPES[FP32].itemsize
    parts: list[WrittenPart] = []
    for slot in engine.slots:
        for kind in slot.kinds:
            for item in _held(engine, slot, kind):
                if item.piece in others:
                    continue
                others.add(item.piece)
                for piece in split(item.piece, most):
                    parts.append(WrittenPart(piece=piece, slot=slot, start=item.at + piece.low - item.piece.low))
    return tuple(parts)


class Writer:
    """Writes the parts of one rank into files of its machine's keeper, two in turn."""

    def __init__(
        self, link: KeeperLink, folder: Path, name: str, generation: int, parts: Sequence[WrittenPart]
    ) -> None:
        self._link, self._folder, self._name, self._generation = link, folder, name, generation
        self._parts, self._maps = parts, dict[str, torch.Tensor]()
        self._rows = rows_of(laid_out([part.piece for part in parts], ""))
        self._bytes = sum(row[7] for row in self._rows)

    def of(self, parts: Sequence[WrittenPart]) -> Writer:
        """Return the writer of other parts of the same rank."""
        return Writer(self._link, self._folder, self._name, self._generation, parts)

    def write(self, step: int, scale: LossScale, *, wait: bool = False) -> None:
        """Copy the state after `step` steps and hand it over; `wait` until the keeper has hashed it. Raises
        RefusedError where the keeper does not take it, OSError where there is no memory for it."""
        file = self._link.ask("snapshot", writer=self._name, generation=self._generation, step=step)["file"]
        if self._parts:
            self._copy(self._memory(file))
        (self._link.ask if wait else self._link.tell)(
            "handed over",
            writer=self._name,
            file=file,
            step=step,
            generation=self._generation,
            rows=self._rows,
            scale=asdict(scale),
        )

    def _memory(self, file: str) -> torch.Tensor:
        if file not in self._maps:
            reserve(self._folder / file, self._bytes)
            memory = np.memmap(self._folder / file, dtype=np.float32, mode="r+", shape=(self._bytes // 4,))
            self._maps[file] = torch.from_numpy(memory)
        return self._maps[file]

    def _copy(self, memory: torch.Tensor) -> None:
        at = 0
        for part in self._parts:
            count = part.piece.elements
            memory[at : at + count].copy_(part.values(), non_blocking=True)
            at += count
        for device in {part.slot.master.device for part in self._parts}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)


def take_back(
    engine: Engine, index: Index, shapes: Mapping[str, CutShape], fetch: Fetch, scale: Mapping[str, Any] | None
) -> None:
    """Set all that a rank updates from pieces on its machine, then the weights of the others that it computes with.
    Every rank must call it. Raises SpecError where a piece is missing or damaged."""
    for slot in engine.slots:
        for kind in slot.kinds:
            host = np.zeros(slot.stop - slot.start, np.float32)
            targets = {item.piece: _view(host, slot, item.at, item.piece) for item in _held(engine, slot, kind)}
            assemble(targets, index, shapes, fetch, "the state on this machine")
            slot.write(kind, slot.start, torch.from_numpy(host))
        updated = slot.buffer.weights.part(slot.start, slot.stop)
        if updated.data_ptr() != slot.master.data_ptr():
            updated.copy_(slot.master)
    if scale is not None:
        engine.loss_scale = LossScale(**scale)
    share_weights(engine)


def _held(engine: Engine, slot: Slot, kind: str) -> Iterator[Any]:
    yield from holdings_of(slot.buffer.bucket, slot.start, slot.stop, engine.layout.plan.model.vocab, kind)


def _view(host: Values, slot: Slot, at: int, piece: StatePiece) -> Values:
    return host[at - slot.start :][: piece.elements]


EARLY = 0.1


@dataclass(kw_only=True)
class Interval:
    """An interval of `every` steps, of which all machines have step number `protected`. A snapshot is taken every
    `also_every` steps too (0: not), when a checkpoint is due."""

    every: int
    protected: int
    also_every: int = 0
    handed: int = -1
    reply: Future[Any] | None = None

    def due(self, step: int) -> bool:
        """Return whether a snapshot is taken after so many steps."""
        usual = max(self.every - ceil(EARLY * self.every), 1)
        return step % usual == 0 or bool(self.also_every and step % self.also_every == 0)

    def hand(self, step: int, reply: Future[Any]) -> None:
        """Note a snapshot that is handed over: `reply` comes once all machines have it."""
        self.handed, self.reply = step, reply

    def wait(self, step: int) -> None:
        """Wait until the state may be that after `step` steps. A snapshot that is late is not waited for again."""
        if self.reply is not None and (step - self.protected > self.every or self.reply.done()):
            self.reply.result()
            self.protected, self.reply = self.handed, None
