"""Checkpoints of a run by a program: what each rank holds, in a file a rank, and how to put it together.

    DIR/step-00000100/run.json               the step, the settings, how each tensor is distributed
    DIR/step-00000100/rank-00000.safetensors  "weight NAME", "KIND NAME" for what the optimizer keeps, "rest NAME"

Any program for the same graph can go on from it. A step is written under another name and renamed when all ranks have
their files on disk, so a folder of that name is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shardwright.errors import SpecError, bad
from shardwright.files import write_atomically
from shardwright.records import record
from shardwright.rows import grouped
from shardwright.spec.text.reading import read_text
from shardwright.spmd.shards import by_units, cut, from_units
from shardwright.spmd.training import SpmdStep
from shardwright.synthesis.graph import Property, Sharded, Sizes, property_document, property_of_document

VERSION = 1
MANIFEST = "run.json"
WEIGHT, REST = "weight", "rest"
Settings = Mapping[str, Any]


@record
class Manifest:
    """What a checkpoint holds: the step that comes next, what the run was told, the class of its optimizer ("" in older
    ones), how each parameter and buffer is distributed over so many `ranks` in units of `sizes`, and by parameter what
    the optimizer keeps beside tensors."""

    folder: Path
    step: int
    settings: Settings
    optimizer: str
    ranks: int
    held: Mapping[str, Property]
    sizes: Sizes
    kept: Mapping[str, Mapping[str, Any]]


def save(
    step: SpmdStep, optimizer: torch.optim.Optimizer, root: Path, number: int, settings: Settings, keep: int
) -> Path:
    """Write the checkpoint before step `number` (from 0) and return its folder; all ranks must call it. The `keep`
    newest stay (0: all), at least two. Raises `SpecError` where an optimizer keeps tensors of other shapes than those
    of its parameters, and where a rank cannot write."""
    final, working = _folder(root, number), root / f".{_folder(root, number).name}"
    rank, problem = step.place.rank, ""
    try:
        working.mkdir(parents=True, exist_ok=True)
        save_file(_tensors(step, optimizer), working / _file(rank))
    except (OSError, SafetensorError) as error:
        problem = f"cannot be written: {getattr(error, 'strerror', None) or error}"
    except SpecError as error:
        problem = str(error)
    if step.fabric.all_reduce(torch.tensor(float(bool(problem)), device=step.device))().item():
        raise bad(str(root), problem or "another rank cannot write its part", "make room, or name another folder")
    if rank == 0:
        _commit(step, optimizer, working, final, number, settings)
        for old in steps(root)[: -max(keep, 2)] if keep else []:
            shutil.rmtree(old, ignore_errors=True)
    step.fabric.all_reduce(torch.zeros((), device=step.device))()  # and no rank goes on before
    return final


def steps(root: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    return sorted(path.parent for path in root.glob(f"step-*/{MANIFEST}") if _number(path.parent).isdecimal())


def give_up(root: Path, number: int) -> list[Path]:
    """Set aside what a run had come to after step `number`, from which it goes on: that would be kept and resumed in
    place of the new steps. Return the new paths."""
    later = [folder for folder in steps(root) if int(_number(folder)) > number]
    aside = [folder.with_name(f"{folder.name}.given-up") for folder in later]
    for before, after in zip(later, aside, strict=True):
        shutil.rmtree(after, ignore_errors=True)
        before.rename(after)
    return aside


def opened(path: Path) -> Manifest:
    """Return what a checkpoint, or the newest in a folder of several, holds. Raises `SpecError` where there is none."""
    folder = path if (path / MANIFEST).exists() else next(reversed(steps(path)), None)
    if folder is None:
        raise bad(str(path), "has no checkpoint of `spmd train`", "name the folder that `out=` named")
    text = read_text(folder / MANIFEST)
    try:
        part = json.loads(text)
        if part["spmd_checkpoint"] != VERSION:
            raise bad(str(folder), f"version {part['spmd_checkpoint']} is not known", f"known: {VERSION}")
        return Manifest(
            folder=folder,
            step=part["step"],
            settings=part["settings"],
            optimizer=part.get("optimizer", ""),
            ranks=part["ranks"],
            held={name: property_of_document(row) for name, row in part["held"].items()},
            sizes={(ratio, units): tuple(row) for ratio, units, row in part["sizes"]},
            kept=part["kept"],
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise bad(str(folder / MANIFEST), "is no checkpoint of `spmd train`", "take an older one") from error


def restore(step: SpmdStep, optimizer: torch.optim.Optimizer, manifest: Manifest) -> None:
    """Set weights, buffers and optimizer state of a rank, whatever program wrote them. Raises `SpecError` where a
    tensor is missing or has another shape, and for the state of another optimizer."""
    leaves, kind = step.leaves(), type(optimizer).__name__
    if manifest.optimizer not in ("", kind):
        message = f"has the state of {manifest.optimizer}, the task's optimizer is {kind}"
        raise bad(str(manifest.folder), message, "go on with the one that wrote it")
    with ExitStack() as stack:
        try:
            files = [
                stack.enter_context(safe_open(manifest.folder / _file(rank), "pt")) for rank in range(manifest.ranks)
            ]
        except (OSError, SafetensorError) as error:
            raise bad(str(manifest.folder), f"cannot be read: {error}", "take an older checkpoint") from None
        keys = (key.partition(" ") for key in files[0].keys())  # noqa: SIM118, a file is no mapping
        kinds = grouped((name, kind) for kind, _, name in keys)
        rest = {name: files[0].get_tensor(f"{REST} {name}") for name, some in kinds.items() if REST in some}
        step.load({**{name: _whole(files, manifest, WEIGHT, name) for name in leaves}, **rest})
        for name, parameter in step.named_parameters():
            state: dict[str, Any] = dict(manifest.kept.get(name, {}))
            for kind in sorted(set(kinds.get(name, ())) - {WEIGHT, REST}):
                whole = _whole(files, manifest, kind, name)
                counts = whole.ndim < parameter.ndim or kind == "step"  # and is no part of anything
                state[kind] = whole if counts else cut(whole, step.held(leaves[name]), step.place).to(step.device)
            if state:
                optimizer.state[parameter] = state


def _folder(root: Path, number: int) -> Path:
    return root / f"step-{number:08d}"


def _number(folder: Path) -> str:
    return folder.name.removeprefix("step-")


def _file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def _tensors(step: SpmdStep, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return what a rank writes, by name; what nobody shards, the first rank writes."""
    tensors = {f"{WEIGHT} {name}": tensor for name, tensor in (*step.named_parameters(), *step.named_buffers())}
    for name, parameter in step.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                if value.ndim and value.shape != parameter.shape:
                    message = f"keeps {kind} of shape {tuple(value.shape)} for {name}, {tuple(parameter.shape)} here"
                    raise bad("the optimizer", message, "take one that works element by element, as Adam does")
                tensors[f"{kind} {name}"] = value
    if step.place.rank == 0:
        tensors |= {f"{REST} {name}": tensor for name, tensor in step.rest.items()}
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def _commit(
    step: SpmdStep, optimizer: torch.optim.Optimizer, working: Path, final: Path, number: int, settings: Settings
) -> None:
    """Write the manifest, and give the folder its name."""
    kept = {
        name: {key: value for key, value in optimizer.state.get(parameter, {}).items() if not isinstance(value, Tensor)}
        for name, parameter in step.named_parameters()
    }
    text = json.dumps(
        {
            "spmd_checkpoint": VERSION,
            "step": number,
            "settings": dict(settings),
            "optimizer": type(optimizer).__name__,
            "ranks": step.fabric.ranks,
            "held": {name: property_document(step.held(ref)) for name, ref in step.leaves().items()},
            "sizes": [[ratio, units, list(row)] for (ratio, units), row in step.place.sizes.items()],
            "kept": {name: some for name, some in kept.items() if some},
        }
    )
    write_atomically(working / MANIFEST, text + "\n")
    shutil.rmtree(final, ignore_errors=True)
    os.replace(working, final)


def _whole(files: list[Any], manifest: Manifest, kind: str, name: str) -> Tensor:
    """Return a tensor whole, from the parts that the ranks wrote."""
    key, held = f"{kind} {name}", manifest.held.get(name)
    try:
        first = files[0].get_tensor(key)
        if not isinstance(held, Sharded) or first.ndim == 0:
            return first
        parts = [by_units(file.get_tensor(key), held) for file in files]
    except SafetensorError as error:
        raise bad(str(manifest.folder), f"has no {key}: {error}", "go on with the task that wrote it") from None
    return from_units(torch.cat(parts), held)
