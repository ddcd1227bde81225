"""Checkpoints as one safetensors file or a folder of torch.distributed.checkpoint, whole tensors by name, and back.

A tensor is named KIND.PARAMETER: `weight.layers.0.attention.query.weight`, `first.…` and `second.…` are Adam's moments.
What else a manifest says travels as text beside them, so that a checkpoint comes back as it was.
"""

from __future__ import annotations

import io
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardwright.errors import bad
from shardwright.runtime.model.parameters import ModelParameter
from shardwright.runtime.state.pieces import WEIGHT, CutShape
from shardwright.runtime.storage.checkpoint import open_checkpoint
from shardwright.runtime.storage.manifest import (
    manifest_text,
    parse_manifest,
    step_folder,
    working_folder,
    write_manifest,
    write_pieces,
)
from shardwright.runtime.storage.weights import (
    open_tensors,
    save_adapters,
    save_megatron,
    save_tensors,
    save_weights,
    write_config,
    write_index,
)
from shardwright.spec.adapter import Adapter
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface_config import config_of_model

HUGGING_FACE, MEGATRON = "huggingface", "megatron"
SUFFIX, TEXT, FILE = ".safetensors", "shardwright", "imported.state"
Tensors = dict[str, torch.Tensor]


def export_checkpoint(source: Path, target: Path) -> int:
    """Write a checkpoint, or the newest of a folder, to a safetensors file, or where `target` has another suffix to a
    new folder of torch.distributed.checkpoint; return its step. Raises SpecError where it is not whole."""
    if target.exists():
        raise bad(str(target), "is there already", "name a new file or folder")
    checkpoint = open_checkpoint(source)
    manifest = checkpoint.manifest
    tensors: Tensors = {}
    weights = ((WEIGHT, name) for name in manifest.parameters)
    for kind, name in dict.fromkeys((*weights, *checkpoint.index)):
        cut = manifest.parameters[name]
        values = np.zeros(prod(cut.shape), np.float32)
        checkpoint.fill({cut.whole(kind, name): values})
        tensors[f"{kind}.{name}"] = torch.from_numpy(values).reshape(cut.shape)
    text = manifest_text(replace(manifest, pieces=()))
    if target.suffix == SUFFIX:
        save_tensors(target, tensors, {TEXT: text})
    else:
        _save_distributed(target, tensors, text)
    return manifest.step


def export_weights(
    source: Path, target: Path, model: Model, names: str = HUGGING_FACE, adapter: Adapter | None = None
) -> int:
    """Write the weights of a checkpoint, or of the newest of a folder, to a new folder in fp32; return its step. By
    Hugging Face's names `from_pretrained` of transformers opens it, or PEFT where there are adapters, which are then
    all that it holds; by Megatron-LM's `--load` reads it (`save_megatron`). Raises SpecError where the checkpoint is
    not whole or not of the model, for a model that has no config, or no place there, and for adapters by Megatron's
    names."""
    if target.exists():
        raise bad(str(target), "is there already", "name a new folder")
    if adapter is not None:
        if names != HUGGING_FACE:
            raise bad(f"`names={names}`", "has no place for adapters", "use `names=huggingface`")
        checkpoint = open_checkpoint(source)
        save_adapters(target, model, adapter, checkpoint.whole_weight, model.name)
        return checkpoint.step
    if names == HUGGING_FACE:
        config_of_model(model)  # before anything is written
    checkpoint = open_checkpoint(source)

    def whole(parameter: ModelParameter) -> torch.Tensor:
        return checkpoint.whole_weight(parameter.name)

    if names == MEGATRON:
        save_megatron(target, model, checkpoint.step, whole)
        return checkpoint.step
    save_weights(target, model, range(len(model.layers) + 2), whole, torch.float32)
    write_index(target, model, torch.float32)
    write_config(target, model, None, torch.float32)
    return checkpoint.step


def import_checkpoint(source: Path, root: Path) -> Path:
    """Write what `export_checkpoint` wrote as a checkpoint of a folder, and return it. Raises SpecError where something
    of it is missing or has another shape."""
    if source.is_dir():
        tensors, text = _read_distributed(source)
    else:
        file = open_tensors(source)
        tensors, text = {name: file.tensor(name) for name in file.names}, file.metadata.get(TEXT, "")
    if not text:
        raise bad(str(source), "holds no run", "import what the export of a checkpoint wrote")
    manifest = parse_manifest(text, str(source))
    stated = (tuple(name.partition(".")[::2]) for name in sorted(tensors))
    weights = ((WEIGHT, name) for name in manifest.parameters)
    final, working = step_folder(root, manifest.step), working_folder(root, manifest.step)
    if final.exists():
        raise bad(str(final), "is there already", "name another folder")
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir(parents=True)
    try:
        items = [
            (cut.whole(kind, name), _values(tensors, f"{kind}.{name}", cut, str(source)))
            for kind, name in dict.fromkeys((*weights, *stated))
            if (cut := manifest.parameters.get(name)) is not None
        ]
        write_manifest(working, replace(manifest, pieces=write_pieces(working, FILE, items)))
        os.replace(working, final)
    except FloatingPointError as error:
        raise bad(str(source), str(error), "import another step") from None
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return final


def _values(tensors: Tensors, name: str, cut: CutShape, where: str) -> Any:
    tensor = tensors.get(name)
    if tensor is None or tuple(tensor.shape) != cut.shape:
        shown = "is missing" if tensor is None else f"has shape {tuple(tensor.shape)}, not {cut.shape}"
        raise bad(where, f"{name} {shown}", "import what the export of a checkpoint wrote")
    return tensor.to(torch.float32).contiguous().numpy().reshape(-1)


def _save_distributed(target: Path, tensors: Tensors, text: str) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    with _alone():
        save({**tensors, TEXT: io.BytesIO(text.encode())}, checkpoint_id=target, no_dist=True)


def _read_distributed(source: Path) -> tuple[Tensors, str]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        known: Mapping[str, Any] = FileSystemReader(source).read_metadata().state_dict_metadata
    except Exception as error:  # torch raises what pickle and the file system do
        raise bad(str(source), f"is no torch.distributed.checkpoint: {error}", "name its folder") from None
    state: dict[str, Any] = {
        name: torch.empty(item.size, dtype=item.properties.dtype)
        for name, item in known.items()
        if isinstance(item, TensorStorageMetadata)
    }
    if TEXT in known:
        state[TEXT] = io.BytesIO()
    with _alone():
        load(state, checkpoint_id=source, no_dist=True)
    return state, state.pop(TEXT, io.BytesIO()).getvalue().decode()


@contextmanager
def _alone() -> Iterator[None]:
    """Without torch's warnings that a single process reads or writes: it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
