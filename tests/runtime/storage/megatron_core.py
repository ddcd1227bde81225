"""A model of Megatron-Core on one CPU with weights that we wrote by its names, where Megatron-Core is installed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright.spec.model import Model

GROUPED = re.compile(r"(.*\.experts\.)(linear_fc[12])\.weight(\d+)")  # experts in one product, by Transformer Engine


@contextmanager
def megatron_core(folder: Path) -> Iterator[None]:
    """Have Megatron-Core's groups of one process in a context; it warns of what it falls back to without a GPU."""
    with warnings.catch_warnings(), patch("torch.cuda.current_device", lambda: torch.device("cpu")):
        warnings.simplefilter("ignore")
        groups, random = map(import_module, ("megatron.core.parallel_state", "megatron.core.tensor_parallel.random"))
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        groups.initialize_model_parallel()
        try:
            with (
                patch.object(random.CudaRNGStatesTracker, "fork", lambda *_: nullcontext()),  # dropout, which is off
                patch("megatron.core.transformer.moe.moe_utils.te_general_gemm", None, create=True),
            ):
                yield
        finally:
            groups.destroy_model_parallel()
            dist.destroy_process_group()


def logits(model: Model, settings: Any, weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the logits [batch, length, padded vocabulary] of GPTModel for `tokens` [batch, length]. `settings` are
    transformers' own configuration of the model.

    GPTModel's layers without Transformer Engine keep norms and experts by themselves; its layer specification says by
    which names norms go in checkpoints."""
    core = partial(import_module)
    spec = core("megatron.core.models.gpt.gpt_layer_specs")
    layer, learned = model.layers[0], settings.model_type == "gpt2"
    attention, mlp, moe = layer.self_attention, layer.mlp, layer.moe
    width, gated = (mlp.width, mlp.gated) if mlp is not None else (moe.expert_width, moe.gated) if moe else (0, False)
    experts = {} if moe is None else {
        "num_moe_experts": moe.experts, "moe_router_topk": moe.top_k, "moe_router_load_balancing_type": "none",
    }  # fmt: skip
    config = core("megatron.core.transformer.transformer_config").TransformerConfig(
        num_layers=len(model.layers), hidden_size=model.hidden, num_attention_heads=attention.heads,
        num_query_groups=attention.kv_heads, kv_channels=attention.head_dim,
        ffn_hidden_size=width, gated_linear_unit=gated,
        activation_func=partial(torch.nn.functional.gelu, approximate="tanh") if learned else torch.nn.functional.silu,
        normalization="LayerNorm" if learned else "RMSNorm", add_bias_linear=learned,
        add_qkv_bias=attention.qkv_bias, qk_layernorm=attention.qk_norm,
        layernorm_epsilon=settings.layer_norm_epsilon if learned else settings.rms_norm_eps,
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True, masked_softmax_fusion=False,
        bias_dropout_fusion=False, bias_activation_fusion=False, gradient_accumulation_fusion=False, **experts,
    )  # fmt: skip
    layers = spec.get_gpt_layer_local_spec(
        num_experts=None if moe is None else moe.experts,
        qk_layernorm=attention.qk_norm,
        normalization=config.normalization,
    )
    built = core("megatron.core.models.gpt.gpt_model").GPTModel(
        config, layers, len(weights["embedding.word_embeddings.weight"]), settings.max_position_embeddings,
        share_embeddings_and_output_weights=model.tied_embeddings,
        position_embedding_type="learned_absolute" if learned else "rope",
        rotary_base=(getattr(settings, "rope_parameters", None) and settings.rope_parameters["rope_theta"]) or 10000,
    )  # fmt: skip
    names = {name: _own_name(name, layers.submodules.sharded_state_dict_keys_map, built) for name in weights}
    missing = built.load_state_dict({names[name]: value for name, value in weights.items()}, strict=False)
    assert not missing.unexpected_keys and all(name.endswith("_extra_state") for name in missing.missing_keys), missing
    length = tokens.shape[1]
    mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    with torch.no_grad():
        return torch.as_tensor(built.eval()(tokens, torch.arange(length)[None].expand_as(tokens), mask))


def _own_name(name: str, written: Mapping[str, str], built: torch.nn.Module) -> str:
    """Return the name in a model of what is called `name` in a checkpoint."""
    if name in built.state_dict():
        return name
    if match := GROUPED.fullmatch(name):
        return f"{match[1]}local_experts.{match[3]}.{match[2]}.weight"
    for mine, theirs in written.items():
        if theirs in name:
            return name.replace(theirs, mine)
    return name
