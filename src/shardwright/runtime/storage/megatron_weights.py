"""Weights as Megatron-LM keeps them: a checkpoint folder for one tensor-parallel rank and one stage.

Names and forms are those of GPTModel with Transformer Engine's layers (megatron-core 0.19,
megatron/core/models/gpt/gpt_layer_specs.py), which `pretrain_gpt.py` builds by default: a norm lies with the product
after it, queries, keys and values are one matrix group by group, gate and up projection one matrix, gate first. The
folder is of `--ckpt-format torch` (megatron/training/checkpointing.py); tools/checkpoint/convert.py cuts it for more
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from shardwright.errors import bad
from shardwright.files import write_atomically
from shardwright.runtime.model.parameters import ModelParameter, unit_parameters
from shardwright.spec.layer import Attention, Layer
from shardwright.spec.model import Model

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
