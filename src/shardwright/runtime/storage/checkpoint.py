"""Checkpoints that any plan can read: fp32 weights and moments by parameter, in files of one bucket each.

A file says of each tensor which part of which parameter it holds, so a rank of another plan finds what it needs. A
folder `step-00000100` appears under its name only when all of it is written; every rank must reach the same storage.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardwright.errors import bad
from shardwright.files import write_atomically
from shardwright.runtime.model.parallel import gather_into
from shardwright.runtime.model.parameters import Parameter
from shardwright.runtime.state.buckets import Bucket, Piece
from shardwright.runtime.state.loss_scale import LossScale
from shardwright.runtime.state.optimizer import Slot
from shardwright.runtime.step.engine import Engine
from shardwright.runtime.storage.tensor_files import TensorFile, open_tensors, save_tensors

NAME = re.compile(r"step-(\d{8})")
META, WEIGHT = "checkpoint.json", "weight"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor in a file that is [start, stop) of a parameter along its cut dimension (None: all of it)."""

    file: TensorFile
    key: str
    dim: int | None
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An open checkpoint: the next step to run, what it was made with, the scale of the loss if it had one (fp16), and
    its parts by kind ("weight", "first", …) and parameter."""

    folder: Path
    step: int
    settings: Mapping[str, Any]
    loss_scale: LossScale | None
    parts: Mapping[tuple[str, str], tuple[Part, ...]]

    def read(self, kind: str, parameter: Parameter, start: int, stop: int) -> torch.Tensor:
        """Return [start, stop) of a parameter along its cut dimension, fp32; rows of padding are zero. Raises SpecError
        where the checkpoint lacks a part of it."""
        parts = self.parts.get((kind, parameter.name), ())
        if parameter.dim is None:
            if parts:
                return parts[0].file.tensor(parts[0].key)
            raise _lacks(self.folder, kind, parameter)
        size = list(parameter.shape)
        size[parameter.dim] = stop - start
        out = torch.zeros(size)
        covered = 0
        for part in parts:
            low, high = max(start, part.start), min(stop, part.stop)
            if low < high:
                found = part.file.tensor(part.key).narrow(parameter.dim, low - part.start, high - low)
                out.narrow(parameter.dim, low - start, high - low).copy_(found)
                covered += high - low
        end = max((part.stop for part in parts), default=0)
        needed = (min(stop, end) if parameter.padded else stop) - start
        if covered < needed or not parts:
            raise _lacks(self.folder, kind, parameter)
        return out

    def whole(self, parameter: Parameter) -> torch.Tensor:
        """Return the weights of a whole parameter."""
        rows = 0 if parameter.dim is None else parameter.shape[parameter.dim]
        return self.read(WEIGHT, parameter, 0, rows)


def save_checkpoint(engine: Engine, root: Path, step: int, settings: Mapping[str, object], keep: int) -> Path:
    """Write the checkpoint of all ranks before `step`, and keep the `keep` newest. Every rank must call it."""
    final = root / f"step-{step:08d}"
    working = root / f".{final.name}.tmp"
    rank = engine.place.rank
    if rank == 0:
        shutil.rmtree(working, ignore_errors=True)
        working.mkdir(parents=True)
    _meet(engine)
    for slot in engine.slots:
        _save_bucket(engine, slot, working)
    _meet(engine)
    if rank == 0:
        scale = engine.loss_scale and asdict(engine.loss_scale)
        meta = {"version": VERSION, "step": step, "settings": dict(settings), "loss_scale": scale}
        write_atomically(working / META, json.dumps(meta, indent=1) + "\n")
        shutil.rmtree(final, ignore_errors=True)
        os.replace(working, final)
        for old in checkpoints(root)[: -keep or None] if keep else []:
            shutil.rmtree(old, ignore_errors=True)
    _meet(engine)
    return final


def checkpoints(root: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return sorted(path for path in root.glob("step-*") if NAME.fullmatch(path.name) and (path / META).exists())


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint, or the newest in a folder of several. Raises SpecError where there is none."""
    folder = path
    if not (path / META).exists():
        found = checkpoints(path)
        if not found:
            raise bad(str(path), "has no complete checkpoint", "name the --out folder of a run that wrote one")
        folder = found[-1]
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        version, step, settings = meta["version"], int(meta["step"]), dict(meta["settings"])
        scale = meta.get("loss_scale") and LossScale(**meta["loss_scale"])
    except (ValueError, KeyError, TypeError):
        raise bad(str(folder / META), "is no description of a checkpoint", "take an older checkpoint") from None
    if version != VERSION:
        raise bad(str(folder / META), f"has version {version}", f"this release reads version {VERSION}")
    parts: dict[tuple[str, str], list[Part]] = {}
    for file in (open_tensors(path) for path in sorted(folder.glob("*.safetensors"))):
        for key, (dim, start, stop) in json.loads(file.metadata.get("parts", "{}")).items():
            kind, _, name = key.partition(":")
            parts.setdefault((kind, name), []).append(Part(file=file, key=key, dim=dim, start=start, stop=stop))
    return Checkpoint(
        folder=folder,
        step=step,
        settings=settings,
        loss_scale=scale,
        parts={key: tuple(found) for key, found in parts.items()},
    )


def restore(engine: Engine, checkpoint: Checkpoint, *, moments: bool = True) -> None:
    """Set weights, and the optimizer's moments, of a rank from a checkpoint of any plan of the same model."""
    for slot in engine.slots:
        bucket = slot.buffer.bucket
        flat = _assembled(checkpoint, bucket, WEIGHT)
        slot.buffer.weights.put(0, flat)
        slot.master.copy_(flat[slot.start : slot.stop])
        for kind, moment in slot.moments.items() if moments else ():
            moment.copy_(_assembled(checkpoint, bucket, kind)[slot.start : slot.stop])
    engine.store.publish()
    if engine.loss_scale is not None and checkpoint.loss_scale is not None:
        engine.loss_scale = checkpoint.loss_scale


def _assembled(checkpoint: Checkpoint, bucket: Bucket, kind: str) -> torch.Tensor:
    flat = torch.zeros(bucket.elements)
    for piece in bucket.pieces:
        value = checkpoint.read(kind, piece.parameter, piece.start, piece.stop)
        flat[piece.offset : piece.offset + piece.elements] = value.reshape(-1)
    return flat


def _save_bucket(engine: Engine, slot: Slot, folder: Path) -> None:
    """Write a bucket's file on one of its holders, after collecting the parts of the others."""
    bucket = slot.buffer.bucket
    writer = bucket.ranks[bucket.units[0] % len(bucket.ranks)]
    tensors: dict[str, torch.Tensor] = {}
    parts: dict[str, tuple[int | None, int, int]] = {}
    for kind, values in {WEIGHT: slot.master, **slot.moments}.items():
        flat = _collected(engine, slot, values)
        if engine.place.rank != writer:
            continue
        for piece in bucket.pieces:
            if piece.counted:
                key = f"{kind}:{piece.parameter.name}"
                tensors[key], parts[key] = _trimmed(flat, piece, engine.layout.plan.model.vocab)
    if tensors:
        what = f"units-{bucket.units[-1]:04d}-{bucket.units[0]:04d}"
        experts = "" if bucket.block is None else f"-experts-{bucket.block:03d}"
        name = f"{what}{experts}-shard-{bucket.shard}-of-{bucket.shards}.safetensors"
        save_tensors(folder / name, tensors, {"parts": json.dumps(parts)})


def _trimmed(flat: torch.Tensor, piece: Piece, vocab: int) -> tuple[torch.Tensor, tuple[int | None, int, int]]:
    """Return a piece without padding of the vocabulary, and which part of its parameter it is."""
    value = flat[piece.offset : piece.offset + piece.elements].view(piece.shape)
    start, stop = piece.start, piece.stop
    if piece.parameter.padded:
        stop = max(min(stop, vocab), start)
        value = value[: stop - start]
    return value, (piece.parameter.dim, start, stop)


def _collected(engine: Engine, slot: Slot, values: torch.Tensor) -> torch.Tensor:
    group = engine.groups.find("gradient", slot.buffer.bucket.ranks)
    if not engine.sharded or group is None:
        return values
    part = values.to(engine.pipeline.device)  # where the group can send it from
    flat = torch.empty(slot.buffer.bucket.elements, dtype=part.dtype, device=part.device)
    gather_into(flat, part.contiguous(), group=group)
    return flat


def _meet(engine: Engine) -> None:
    if engine.layout.world_size > 1:
        dist.barrier()


def _lacks(folder: Path, kind: str, parameter: Parameter) -> Exception:
    return bad(str(folder), f"lacks a part of {parameter.name} ({kind})", "resume with the same model and optimizer")
