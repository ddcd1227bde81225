"""Models as configurations of transformers 5, from the fields that a plan has of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwright.errors import Problem, SpecError
from shardwright.spec.model import Model

HINT = "rehearse a dense model of the families llama, mistral, qwen2 or qwen3"


def configuration(model: Model) -> dict[str, Any]:
    """Return the fields of `AutoConfig.for_model`, `model_type` among them. Raises SpecError where a model is of no
    family that is known here."""
    problems = tuple(Problem("model", message, HINT) for message in _lacking(model))
    if problems:
        raise SpecError(*problems)
    (kind,) = model.kinds
    attention = kind.attention
    assert kind.mlp is not None and attention is not None, "other blocks are refused"
    result: dict[str, Any] = {
        "model_type": "qwen3" if attention.qk_norm else "qwen2" if attention.qkv_bias else "llama",
        "hidden_size": model.hidden,
        "intermediate_size": kind.mlp.width,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": max(model.max_position, 1),
        "tie_word_embeddings": model.tied_embeddings,
        "hidden_act": "silu",
        "use_cache": False,
    }
    return result


def _lacking(model: Model) -> Iterator[str]:
    if len(model.kinds) > 1:
        yield "has layers of several kinds, which are not rehearsed under FSDP2 yet"
        return
    (kind,) = model.kinds
    attention = kind.attention
    if attention is None or kind.mixer is not None or attention.gate is not None:
        yield "has blocks with other mixers than attention, which are not rehearsed under FSDP2 yet"
        return
    checks = {
        "mixtures of experts": kind.moe is not None,
        "multi-head latent attention": attention.latent is not None,
        "windowed attention": attention.window is not None,
        "attention to later tokens": not attention.causal,
        "a bias on the output of attention": attention.out_bias,
        "norms of queries and keys beside biases": attention.qk_norm and attention.qkv_bias,
        "value heads of another size": attention.head_dim != attention.value_head_dim,
        "a feed-forward block without a gate": kind.mlp is not None and not kind.mlp.gated,
        "a bias in the feed-forward block": kind.mlp is not None and kind.mlp.bias,
        f"{model.position} positions": model.position != "rope" or model.rotary_fraction != 1.0,
        f"the norm {model.norm}": model.norm != "rmsnorm" or kind.norms != 2 or model.norm_vectors is not None,
        f"the activation {model.activation}": model.activation not in ("silu", "swish", "swiglu"),
        "multi-token prediction": model.mtp_layers > 0,
        "what is particular to it": model.particular is not None or model.parallel_block or model.dropout,
        "an embedding of another width": model.embedding_width is not None or model.embedding_norm,
    }
    for what, there in checks.items():
        if there:
            yield f"{what} cannot be rehearsed under FSDP2 yet"
