"""Adapters from and to folders as PEFT keeps them: `adapter_config.json` and `adapter_model.safetensors`.

A tensor is named by the module of transformers that it stands beside (`peft/utils/save_and_load.py` of PEFT 0.21), so
that `PeftModel.from_pretrained` opens what is written here, and what PEFT wrote is gone on from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from shardwright.errors import bad
from shardwright.files import write_atomically
from shardwright.runtime.model.adapters import DOWN, LENGTHS, UP, trained_parameters
from shardwright.runtime.model.initial import Initial
from shardwright.runtime.model.names import form_of, source_of
from shardwright.runtime.model.parameters import ModelParameter
from shardwright.runtime.storage.tensor_files import TensorFile, open_tensors, save_tensors
from shardwright.runtime.storage.weight_files import ADAPTER_CONFIG, ADAPTERS
from shardwright.spec.adapter import Adapter, peft_fields
from shardwright.spec.model import Model
from shardwright.spec.text.reading import parse_json, read_text

SUFFIXES = {DOWN: "lora_A.weight", UP: "lora_B.weight", LENGTHS: "lora_magnitude_vector"}
READ = ("r", "lora_alpha", "use_dora", "bias")
OTHERS = ("use_rslora", "alpha_pattern", "rank_pattern", "modules_to_save", "target_parameters", "lora_bias")
"""What must be in a folder as in the plan, and what must not be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """The adapters of a folder."""

    folder: Path
    file: TensorFile

    def whole(self, model: Model, parameter: ModelParameter) -> torch.Tensor:
        """Return a whole parameter of an adapter. Raises SpecError where it is missing or of another shape."""
        name = peft_name(model, parameter)
        if name not in self.file.names:
            raise bad(str(self.folder), f"has no tensor {name}", "give adapters beside the plan's targets")
        value = self.file.tensor(name)
        if tuple(value.shape) != parameter.shape:
            message = f"{name} has shape {tuple(value.shape)}, the plan's adapters {parameter.shape}"
            raise bad(str(self.folder), message, "give adapters of the plan's model and rank")
        return value


def open_adapters(folder: Path, adapter: Adapter) -> AdapterFile:
    """Open the adapters of a folder. Raises SpecError where there are none, or others than a plan's."""
    path = folder / ADAPTER_CONFIG
    config = parse_json(read_text(path), str(path))
    expected = peft_fields(adapter, [])
    given = {"use_dora": False, **config} if isinstance(config, dict) else {}
    others = [
        f"{name} {given.get(name)}, in the plan {expected[name]}" for name in READ if given.get(name) != expected[name]
    ]
    others += [f"{name} {given[name]}, which train does not have" for name in OTHERS if given.get(name)]
    if others:
        raise bad(str(path), f"has {'; '.join(others)}", "name adapters of the form, rank and alpha of the plan")
    return AdapterFile(folder=folder, file=open_tensors(folder / ADAPTERS))


def from_folder(frozen: Initial, adapters: AdapterFile, model: Model) -> Initial:
    """Return the initial values of a model and of adapters beside it that a folder has."""
    return lambda parameter: frozen(parameter) if parameter.beside is None else adapters.whole(model, parameter)


def save_adapters(
    folder: Path, model: Model, adapter: Adapter, whole: Callable[[str], torch.Tensor], base: str
) -> None:
    """Write the adapters of a model beside the weights `base`. `whole` returns whole parameters by name."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = list(_parts(model, adapter))
    save_tensors(folder / ADAPTERS, {peft_name(model, part): whole(part.name) for part in parts}, {"format": "pt"})
    matrices = [part.beside for part in parts if part.beside is not None]
    config = {
        **peft_fields(adapter, _modules(model, matrices)),
        "base_model_name_or_path": base,
        "fan_in_fan_out": any(form_of(model, matrix) == "turned" for matrix in matrices),
        "inference_mode": True,
    }
    write_atomically(folder / ADAPTER_CONFIG, json.dumps(config, indent=2) + "\n")


def _parts(model: Model, adapter: Adapter) -> Iterator[ModelParameter]:
    for unit in range(len(model.layers) + 2):
        yield from trained_parameters(model, adapter, unit, model.vocab)


def _module(model: Model, matrix: ModelParameter) -> str:
    return source_of(model, matrix).name.removesuffix(".weight")


def _modules(model: Model, matrices: list[ModelParameter]) -> list[str]:
    """Return the ends of the names of the modules that have an adapter: the last word, or two where other modules may
    end in it too."""
    words = 2 if any(kind.moe for kind in model.kinds) else 1
    names = [_module(model, matrix).split(".") for matrix in matrices]
    if len({name[-1] for name in names}) < len({tuple(name[-2:]) for name in names}):
        words = 2
    return sorted({".".join(name[-words:]) for name in names})


def peft_name(model: Model, parameter: ModelParameter) -> str:
    """Return what PEFT calls a parameter of an adapter in its files."""
    assert parameter.beside is not None, "adapters stand beside something"
    suffix = SUFFIXES[parameter.name.rpartition(".")[2]]
    return f"base_model.model.{_module(model, parameter.beside)}.{suffix}"
