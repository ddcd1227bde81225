"""Checkpoints of an engine: every rank writes and reads the part of the state that it updates, in `storage`'s format.

A step is written in two phases: all ranks have their files on disk and say so, then rank 0 writes the manifest and
gives the folder its name. What fails on one rank leaves no step, and the ones before as they were. All ranks must reach
the same storage.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from shardwright.errors import SpecError, bad
from shardwright.records import record
from shardwright.runtime.model.parallel import gather_into
from shardwright.runtime.state.optimizer import gather_weights
from shardwright.runtime.state.pieces import WEIGHT, StatePiece, holdings_of, parameter_shapes
from shardwright.runtime.state.recipe import LossScale
from shardwright.runtime.state.slots import Slot
from shardwright.runtime.state.store import Buffer
from shardwright.runtime.step.engine import Engine
from shardwright.runtime.storage.manifest import (
    Course,
    Fetch,
    Index,
    Manifest,
    Values,
    assemble,
    by_parameter,
    checkpoints,
    manifest_of,
    model_hash,
    newest_checkpoint,
    read_part,
    read_piece,
    remove_part,
    step_folder,
    step_of,
    working_folder,
    working_folders,
    write_manifest,
    write_part,
    write_pieces,
)

MOST_NAMED = 3  # problems of as many ranks
T = TypeVar("T")


@record
class Saved:
    """The folder of a step, and why it is not there ("" if it is)."""

    folder: Path
    problem: str = ""


@record
class Checkpoint:
    """An open checkpoint: its manifest, its pieces by parameter, and how the values of one are fetched."""

    name: str
    manifest: Manifest
    index: Index
    fetch: Fetch

    @property
    def step(self) -> int:
        """The next step to run."""
        return self.manifest.step

    def whole_weight(self, name: str) -> torch.Tensor:
        """Return a whole parameter, fp32, without padding. Raises SpecError where a part is missing or changed."""
        cut = self.manifest.parameters.get(name)
        if cut is None:
            raise bad(self.name, f"has no parameter {name}", "take a checkpoint of the plan's model")
        values = np.empty(cut.shape, np.float32)
        self.fill({cut.whole(WEIGHT, name): values.reshape(-1)})
        return torch.from_numpy(values)

    def fill(self, targets: Mapping[StatePiece, Values]) -> None:
        """Set flat values of pieces. Raises SpecError where a part is missing or changed."""
        assemble(targets, self.index, self.manifest.parameters, self.fetch, self.name)


def save_checkpoint(engine: Engine, root: Path, step: int, course: Course, keep: int) -> Saved:
    """Write the checkpoint of all ranks before `step`, and keep the `keep` newest (0: all), at least two: no step has
    shown yet that the new weights are good. Every rank must call it, and all get the same answer: what goes wrong on
    one of them is no exception, and no step."""
    final, working = step_folder(root, step), working_folder(root, step)
    rank = engine.place.rank
    for phase in (_prepare, _write, _commit):
        problem = ""
        if phase is _write or rank == 0:
            try:
                phase(engine, root, step, course)
            except OSError as error:
                problem = f"{error.filename or final}: {error.strerror or error}"
            except (FloatingPointError, SpecError) as error:
                problem = str(error)
        if problems := problems_of_all(engine, problem):
            if rank == 0:
                shutil.rmtree(working, ignore_errors=True)
            return Saved(folder=final, problem=problems)
    if rank == 0 and keep:
        prune(root, max(keep, 2))
    return Saved(folder=final)


def prune(root: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints. What is left of one where that is cut short goes with the next."""
    for old in checkpoints(root)[:-keep]:
        going = root / f"{working_folder(root, step_of(old)).name}.pruned"
        with suppress(OSError):
            shutil.rmtree(old.rename(going), ignore_errors=True)


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint, or the newest in a folder of several. Raises SpecError where there is none."""
    folder = newest_checkpoint(path)
    manifest = manifest_of(folder)
    return Checkpoint(
        name=str(folder),
        manifest=manifest,
        index=by_parameter(manifest.pieces),
        fetch=lambda stored: read_piece(folder, stored),
    )


def written(engine: Engine) -> Iterator[tuple[StatePiece, Values]]:
    """Yield the pieces that a rank writes, with their values; those of all ranks together are every value once."""
    vocab = engine.layout.plan.model.vocab
    for slot in engine.slots:
        start, stop = _own(engine, slot)
        for kind in slot.kinds if start < stop else ():
            host = slot.read(kind, start, stop).detach().cpu().numpy()
            for item in holdings_of(slot.buffer.bucket, start, stop, vocab, kind):
                if item.counted:
                    yield item.piece, host[item.at - start :][: item.piece.elements]


def restore(engine: Engine, checkpoint: Checkpoint | None, problem: str = "") -> str:
    """Set weights, optimizer state and loss scale of a rank, and return why they could not be set ("" if they are), the
    same on all ranks. Every rank must call it; each reads its own part of every bucket, and once all have theirs,
    holders of the same send it to each other. `problem` says why a rank has no `checkpoint`."""
    if checkpoint is not None:
        try:
            for slot in engine.slots:
                _read(engine, slot, checkpoint)
        except SpecError as error:
            problem = str(error)
    if problems := problems_of_all(engine, problem):
        return problems
    assert checkpoint is not None, "a rank without one has a problem"
    if not engine.sharded:
        for buffer in engine.store.buffers:
            _share(engine, buffer)
    for slot in engine.slots:
        weights = slot.buffer.weights.part(slot.start, slot.stop)
        if weights.data_ptr() != slot.master.data_ptr():
            weights.copy_(slot.master)
    if engine.sharded:
        gather_weights(engine.store, engine.place.rank, engine.groups)
    engine.store.publish()
    if checkpoint.manifest.loss_scale is not None:
        before = LossScale(**checkpoint.manifest.loss_scale)
        kept = before.dynamic == engine.loss_scale.dynamic  # else the precision is another one
        engine.loss_scale = before if kept else replace(engine.loss_scale, skipped=before.skipped)
    return ""


def _own(engine: Engine, slot: Slot) -> tuple[int, int]:
    """Return [start, stop) of the elements of a slot that this rank writes and reads: its own, as under ZeRO-1."""
    start, stop = slot.buffer.bucket.own(engine.place.rank, sharded=True)
    return max(start, slot.start), min(stop, slot.stop)


def _read(engine: Engine, slot: Slot, checkpoint: Checkpoint) -> None:
    """Set a rank's own part of the state of a slot."""
    start, stop = _own(engine, slot)
    for kind in slot.kinds if start < stop else ():
        host = np.zeros(stop - start, np.float32)
        holdings = holdings_of(slot.buffer.bucket, start, stop, engine.layout.plan.model.vocab, kind)
        checkpoint.fill({item.piece: host[item.at - start :][: item.piece.elements] for item in holdings})
        slot.write(kind, start, torch.from_numpy(host))


def _share(engine: Engine, buffer: Buffer) -> None:
    """Set the parts of other holders of a bucket, of which every one has all."""
    bucket, device = buffer.bucket, engine.pipeline.device  # where the group can send from
    group = engine.groups.find("gradient", bucket.ranks)
    if group is None:
        return
    slots = [slot for slot in engine.slots if slot.buffer is buffer]
    for kind in dict.fromkeys(kind for slot in slots for kind in slot.kinds):
        whole = torch.zeros(bucket.elements, dtype=torch.float32, device=device)
        having = [slot for slot in slots if kind in slot.kinds]
        for slot in having:
            start, stop = _own(engine, slot)
            if start < stop:
                whole[start:stop].copy_(slot.read(kind, start, stop))
        start, stop = bucket.own(engine.place.rank, sharded=True)
        gather_into(whole, whole[start:stop].clone(), group=group)
        for slot in having:
            slot.write(kind, slot.start, whole[slot.start : slot.stop])


def _prepare(engine: Engine, root: Path, step: int, course: Course) -> None:
    for stale in working_folders(root):
        shutil.rmtree(stale, ignore_errors=True)
    working_folder(root, step).mkdir(parents=True)


def _write(engine: Engine, root: Path, step: int, course: Course) -> None:
    working, file = working_folder(root, step), state_file(engine.place.rank)
    write_part(working, file, write_pieces(working, file, written(engine)))


def _commit(engine: Engine, root: Path, step: int, course: Course) -> None:
    """Write the manifest from the parts that the ranks left, and give the folder its name."""
    final, working = step_folder(root, step), working_folder(root, step)
    files = [state_file(rank) for rank in range(engine.layout.world_size)]
    manifest = Manifest(
        step=step,
        model=model_hash(engine.layout.plan.model),
        settings=course.settings,
        data=course.data,
        random=course.random,
        loss_scale=asdict(engine.loss_scale),
        parameters=parameter_shapes(engine.layout),
        pieces=tuple(stored for file in files for stored in read_part(working, file)),
    )
    write_manifest(working, manifest)
    for file in files:
        remove_part(working, file)
    replaced = root / f"{working.name}.replaced"
    if final.exists():
        os.replace(final, replaced)
    os.replace(working, final)
    shutil.rmtree(replaced, ignore_errors=True)


def state_file(rank: int) -> str:
    return f"rank-{rank:05d}.state"


def problems_of_all(engine: Engine, own: str) -> str:
    """Return what went wrong on any rank, in words, the same on all; a meeting of all ranks."""
    different = list(dict.fromkeys(problem for problem in gathered(engine, own) if problem))
    more = len(different) - MOST_NAMED
    return "; ".join(different[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def gathered(engine: Engine, report: T) -> list[T]:
    """Return what every rank reports, in their order, the same on all; a meeting of all ranks."""
    if engine.layout.world_size == 1:
        return [report]
    reports: list[Any] = [None] * engine.layout.world_size
    dist.all_gather_object(reports, report, group=engine.groups.meeting)
    return reports
