"""Weights from and to Hugging Face files, whatever the plan: every rank reads its own parts of mapped files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from shardwright.errors import bad
from shardwright.files import write_atomically
from shardwright.runtime.model.fused import TensorSource
from shardwright.runtime.model.names import source_of
from shardwright.runtime.model.parameters import ModelParameter, unit_parameters
from shardwright.runtime.storage.tensor_files import TensorFile, open_tensors, save_tensors
from shardwright.runtime.storage.weight_files import INDEX, weight_files
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface_config import config_of_model


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceWeights:
    """The tensors of a folder by name, each with its file."""

    folder: Path
    files: dict[str, TensorFile]

    def whole(self, model: Model, parameter: ModelParameter) -> torch.Tensor:
        """Return a whole parameter, padded with zeros to its rows. Raises SpecError where it is missing or of another
        shape."""
        value = self._read(source_of(model, parameter), parameter)
        if parameter.padded and value.shape[1:] == parameter.shape[1:] and len(value) == model.vocab:
            value = torch.cat([value, value.new_zeros((parameter.shape[0] - len(value), *value.shape[1:]))])
        if tuple(value.shape) != parameter.shape:
            message = f"{parameter.name} has shape {tuple(value.shape)}, the plan's model {parameter.shape}"
            raise bad(str(self.folder), message, "give the weights of the plan's model")
        return value

    def _read(self, source: TensorSource, parameter: ModelParameter) -> torch.Tensor:
        names = (source.name, source.name.partition(".")[2], f"model.{source.name}")
        name = next((name for name in names if name in self.files), None)
        if name is None:
            raise bad(str(self.folder), f"has no tensor {source.name}", "give the weights of the plan's model")
        value = self.files[name].tensor(name)
        if source.shape is not None and value.numel() != prod(source.shape):
            message = f"{name} has shape {tuple(value.shape)}, the plan's model {source.shape}"
            raise bad(str(self.folder), message, "give the weights of the plan's model")
        return source.taken(value, parameter)


def open_weights(folder: Path) -> HuggingFaceWeights:
    """Open the safetensors files of a folder, one or several with an index. Raises SpecError where there are none."""
    files: dict[str, TensorFile] = {}
    for path in weight_files(folder):
        file = open_tensors(path)
        files |= dict.fromkeys(file.names, file)
    return HuggingFaceWeights(folder=folder, files=files)


def save_weights(
    folder: Path,
    model: Model,
    units: Iterable[int],
    whole: Callable[[ModelParameter], torch.Tensor],
    dtype: torch.dtype,
) -> None:
    """Write the safetensors files of some units of a model, one each. `whole` returns whole parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    for unit in units:
        tensors = dict(_tensors(model, unit, whole, dtype))
        if tensors:
            save_tensors(folder / _file(model, unit), tensors, {"format": "pt"})


def write_index(folder: Path, model: Model, dtype: torch.dtype) -> None:
    """Write the index of the files of all units."""
    placed: dict[str, str] = {}
    elements = 0
    for unit in range(len(model.layers) + 2):
        for parameter in unit_parameters(model, unit, model.vocab):
            placed[source_of(model, parameter).name] = _file(model, unit)
            elements += prod(parameter.shape)
    index = {"metadata": {"total_size": elements * dtype.itemsize}, "weight_map": placed}
    write_atomically(folder / INDEX, json.dumps(index, indent=1) + "\n")


def write_config(folder: Path, model: Model, given: Mapping[str, object] | None, dtype: torch.dtype) -> None:
    """Write the `config.json` with which `from_pretrained` opens the weights: the `given` one, else that of the model.
    Raises SpecError for a model of which none is known."""
    kind = str(dtype).removeprefix("torch.")
    config = {**(given or config_of_model(model)), "dtype": kind, "torch_dtype": kind}
    write_atomically(folder / "config.json", json.dumps(config, indent=2) + "\n")


def _file(model: Model, unit: int) -> str:
    return f"model-{unit + 1:05d}-of-{len(model.layers) + 2:05d}.safetensors"


def _tensors(
    model: Model, unit: int, whole: Callable[[ModelParameter], torch.Tensor], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a unit under Hugging Face's names."""
    left: dict[str, int] = {}
    tensors: dict[str, torch.Tensor] = {}
    for parameter in unit_parameters(model, unit, model.vocab):
        source, value = source_of(model, parameter), whole(parameter).to(dtype)
        name = source.name
        if name not in tensors:
            tensors[name] = torch.empty(source.shape or parameter.shape, dtype=dtype)
            left[name] = tensors[name].numel()
        source.put(tensors[name], value)
        left[name] -= value.numel()
        if not left[name]:
            yield name, tensors.pop(name)
