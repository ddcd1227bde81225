"""Weights and adapters from and to safetensors files, whatever the plan: each rank reads its parts of mapped files; and
weights as Megatron-LM keeps them.

Weights are named as Hugging Face has them. Adapters lie in folders as PEFT keeps them, `adapter_config.json` and
`adapter_model.safetensors`: a tensor is named by the module of transformers that it stands beside
(`peft/utils/save_and_load.py` of PEFT 0.21), so that `PeftModel.from_pretrained` opens what is written here, and what
PEFT wrote is gone on from. A file is opened lazily, and written whole or not at all.

For Megatron-LM weights lie in a checkpoint folder for one tensor-parallel rank and one stage.
Names and forms are those of GPTModel with Transformer Engine's layers (megatron-core 0.19,
megatron/core/models/gpt/gpt_layer_specs.py), which `pretrain_gpt.py` builds by default: a norm lies with the product
after it, queries, keys and values are one matrix group by group, gate and up projection one matrix, gate first. The
folder is of `--ckpt-format torch` (megatron/training/checkpointing.py); tools/checkpoint/convert.py cuts it for more
ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from shardwright.errors import bad
from shardwright.files import replacing, write_atomically
from shardwright.records import record
from shardwright.runtime.model.fused import TensorSource
from shardwright.runtime.model.initial import Initial
from shardwright.runtime.model.names import form_of, source_of
from shardwright.runtime.model.parameters import DOWN, LENGTHS, UP, ModelParameter, trained_parameters, unit_parameters
from shardwright.runtime.model.words import OTHER_NAMES
from shardwright.runtime.storage.weight_files import ADAPTER_CONFIG, ADAPTERS, INDEX, weight_files
from shardwright.spec.adapter import Adapter, peft_fields
from shardwright.spec.layer import Attention, Layer
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface_config import config_of_model
from shardwright.spec.text.reading import parse_json, read_text

SUFFIXES = {DOWN: "lora_A.weight", UP: "lora_B.weight", LENGTHS: "lora_magnitude_vector"}
# What must be in a folder as in the plan, and what must not be there.
READ = ("r", "lora_alpha", "use_dora", "bias")
OTHERS = ("use_rslora", "alpha_pattern", "rank_pattern", "modules_to_save", "target_parameters", "lora_bias")


@record
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
        others = [source.name.replace(name, other) for name, other in OTHER_NAMES.items()]
        names = (source.name, source.name.partition(".")[2], f"model.{source.name}", *others)
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


@record
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
    words = 2 if model.has_experts else 1
    names = [_module(model, matrix).split(".") for matrix in matrices]
    if len({name[-1] for name in names}) < len({tuple(name[-2:]) for name in names}):
        words = 2
    return sorted({".".join(name[-words:]) for name in names})


def peft_name(model: Model, parameter: ModelParameter) -> str:
    """Return what PEFT calls a parameter of an adapter in its files."""
    assert parameter.beside is not None, "adapters stand beside something"
    suffix = SUFFIXES[parameter.name.rpartition(".")[2]]
    return f"base_model.model.{_module(model, parameter.beside)}.{suffix}"


@record
class TensorFile:
    """An open file: its tensors' names and its metadata; tensors are read when asked for."""

    names: frozenset[str]
    metadata: Mapping[str, str]
    handle: Any

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor. Do not write to it: its memory may be the file."""
        tensor: torch.Tensor = self.handle.get_tensor(name)
        return tensor


def open_tensors(path: Path) -> TensorFile:
    """Open a file. Raises SpecError where it is missing, cut off or of another format."""
    try:
        handle: Any = safe_open(path, framework="pt")
    except OSError as error:
        raise bad(str(path), f"cannot be read: {error.strerror or error}", "check the path") from None
    except SafetensorError as error:
        raise bad(str(path), f"is no whole safetensors file ({error})", "fetch or write it anew") from None
    return TensorFile(names=frozenset(handle.keys()), metadata=handle.metadata() or {}, handle=handle)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors such that a reader never sees a part of them."""
    # the library refuses tensors that share memory, such as parts of one buffer
    alone = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save_file(alone, temporary, dict(metadata or {}))


Whole = Callable[[ModelParameter], torch.Tensor]
Tensors = dict[str, torch.Tensor]
VOCAB_MULTIPLE = 128  # --make-vocab-size-divisible-by, if not given
VERSION = 3.0  # checkpoint_version: queries, keys and values of a group lie together
QUERY_KEY_VALUE = ("attention.query", "attention.key", "attention.value")
ENDS: Mapping[str, str] = MappingProxyType(
    {
        "embedding.tokens": "embedding.word_embeddings",
        "embedding.positions": "embedding.position_embeddings",
        "head.norm": "decoder.final_layernorm",
        "head": "output_layer",
    }
)
BLOCKS: Mapping[str, str] = MappingProxyType(
    {
        "attention_norm": "self_attention.linear_qkv.layer_norm_",
        "attention.query_norm": "self_attention.q_layernorm.",
        "attention.key_norm": "self_attention.k_layernorm.",
        "attention.out": "self_attention.linear_proj.",
        "mlp.down": "mlp.linear_fc2.",
        "moe.router": "mlp.router.",
        "moe.shared.down": "mlp.shared_experts.linear_fc2.",
        "moe.shared_weight": "mlp.shared_experts.gate_",
        "moe.balance": "mlp.router.expert_",
    }
)


def save_megatron(target: Path, model: Model, step: int, whole: Whole) -> None:
    """Write the weights of a model as a folder that Megatron-LM's `--load` reads, with `--finetune` where the optimizer
    is to start anew. Raises SpecError for a block that has no place in its GPTModel."""
    tensors = megatron_tensors(model, whole)
    folder = target / f"iter_{step:07d}" / "mp_rank_00"
    folder.mkdir(parents=True)
    state = {"model": tensors, "checkpoint_version": VERSION, "iteration": step}
    torch.save(state, folder / "model_optim_rng.pt")
    write_atomically(target / "latest_checkpointed_iteration.txt", str(step))


def megatron_tensors(model: Model, whole: Whole) -> Tensors:
    """Return all weights by Megatron-LM's names. `whole` returns whole parameters. Raises SpecError as
    `save_megatron` does."""
    tensors: Tensors = {}
    for unit in range(len(model.layers) + 2):
        values = {item.name: whole(item) for item in unit_parameters(model, unit, model.vocab)}
        if 0 < unit <= len(model.layers):
            here = f"layers.{unit - 1}."
            block = {name.removeprefix(here): value for name, value in values.items()}
            for name, value in _layer(model.layers[unit - 1], block):
                tensors[f"decoder.{here}{name}"] = value.contiguous()
        else:
            for name, value in values.items():
                tensors[_end(name)] = _padded(value) if name.startswith(("embedding.tokens", "head.w")) else value
    return tensors


def _end(name: str) -> str:
    block, _, kind = name.rpartition(".")
    return f"{_known(ENDS, block, name)}.{kind}"


def _known(places: Mapping[str, str], block: str, name: str) -> str:
    if block not in places:
        message = f"{name} has no place in Megatron-LM's GPTModel"
        raise bad("`names=megatron`", message, "export the names of huggingface")
    return places[block]


def _padded(value: torch.Tensor) -> torch.Tensor:
    """Return a matrix whose rows are those of the vocabulary with the rows that Megatron-LM adds."""
    return torch.cat([value, value.new_zeros((-len(value) % VOCAB_MULTIPLE, *value.shape[1:]))])


def _layer(layer: Layer, values: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    left = dict(values)
    for kind in ("weight", "bias"):
        parts = [left.pop(f"{part}.{kind}", None) for part in QUERY_KEY_VALUE]
        if all(part is not None for part in parts):
            yield f"self_attention.linear_qkv.{kind}", _by_group(layer.self_attention, parts)  # type: ignore[arg-type]
        for block, place in _gated(left, kind):
            up, gate = left.pop(f"{block}.up.{kind}"), left.pop(f"{block}.gate.{kind}", None)
            yield place, up if gate is None else torch.cat([gate, up])
    for name, value in left.items():
        yield _place(layer, name), value


def _gated(values: Tensors, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the blocks that have an up projection, and where Megatron-LM has it."""
    for name in list(values):
        block, _, end = name.rpartition(".up.")
        if end == kind:
            yield block, _expert(block, "linear_fc1", kind)


def _expert(block: str, matrix: str, kind: str) -> str:
    """Return where a matrix of a feed-forward block is: the plain one, the shared expert's, or an expert's of many."""
    if block.startswith("moe.experts."):
        return f"mlp.experts.{matrix}.{kind}{block.rpartition('.')[2]}"
    return f"{'mlp' if block == 'mlp' else 'mlp.shared_experts'}.{matrix}.{kind}"


def _place(layer: Layer, name: str) -> str:
    block, _, kind = name.rpartition(".")
    if block == "mlp_norm":
        return f"{'mlp.linear_fc1.layer_norm_' if layer.moe is None else 'pre_mlp_layernorm.'}{kind}"
    if block.startswith("moe.experts.") and block.endswith(".down"):
        return _expert(block.removesuffix(".down"), "linear_fc2", kind)
    return f"{_known(BLOCKS, block, name)}{kind}"


def _by_group(attention: Attention, parts: list[torch.Tensor]) -> torch.Tensor:
    """Return queries, keys and values as one, the queries of a group before its key and value."""
    rows = [part.reshape(attention.kv_heads, -1, attention.head_dim, *part.shape[1:]) for part in parts]
    return torch.cat(rows, dim=1).reshape(-1, *parts[0].shape[1:])
