"""Zamba and Zamba2: layers of Mamba that share transformer blocks (`spec.layer.SharedBlock`).

Field by field as `ZambaConfig` and `Zamba2Config` of transformers 5.24 have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.spec.layer import Layer, SharedBlock, interned
from shardwright.spec.read import config_fields as spelled
from shardwright.spec.read.config_fields import MOST_WIDTH, ConfigFields
from shardwright.spec.read.families import ModelFamily

LONG_CONTEXT = 16384  # positions of `use_long_context`


def zamba_config(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """The width of heads may be given, that of what attention reads is that of two hidden states."""
    hidden, heads = _hidden_and_heads(fields)
    wide = fields.size("attention_hidden_size", most=2 * MOST_WIDTH)
    if wide is not None and wide != 2 * hidden:
        message = f"is {wide}, and attention reads the embedding beside the hidden state: {2 * hidden}"
        fields.section.report("attention_hidden_size", message, f"write {2 * hidden}")
    given = fields.size("attention_head_dim", most=MOST_WIDTH)
    return family, {"head_dim": given or max(2 * hidden // heads, 1)}


def zamba2_config(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """Heads divide two hidden states, whatever else a config says of their width; positions may be rotated."""
    hidden, heads = _hidden_and_heads(fields)
    overlay: dict[str, object] = {"head_dim": max(2 * hidden // heads, 1)}
    if (2 * hidden) % heads and not fields.section.problems:
        fields.section.report(spelled.HEADS[0], f"{heads} heads do not divide {2 * hidden}", "use a divisor of it")
    if fields.flag("use_long_context", default=False):
        overlay["max_position_embeddings"] = LONG_CONTEXT
    rotated = fields.flag("use_mem_rope", default=False)
    return replace(family, position="rope" if rotated else "none"), overlay


def _hidden_and_heads(fields: ConfigFields) -> tuple[int, int]:
    hidden = fields.required(*spelled.HIDDEN, most=MOST_WIDTH)
    return hidden, fields.required(*spelled.HEADS, most=MOST_WIDTH)


def zamba_layers(fields: ConfigFields, layers: tuple[Layer, ...], hidden: int) -> tuple[Layer, ...]:
    """Return layers of which those with attention share blocks, and others have a mixer alone."""
    return _sharing(layers, SharedBlock())


def zamba2_layers(fields: ConfigFields, layers: tuple[Layer, ...], hidden: int) -> tuple[Layer, ...]:
    """Return the same, with what each adds of low rank."""
    rank = fields.size("adapter_rank", most=MOST_WIDTH)
    beside_attention = rank if fields.flag("use_shared_attention_adapter", default=False) else None
    attention = next((layer.attention for layer in layers if layer.attention), None)
    if beside_attention and attention is not None and attention.projected_widths != (2 * hidden,) * 3:
        message = f"adds {2 * hidden} numbers to queries, keys and values of {attention.projected_widths}"
        fields.section.report("use_shared_attention_adapter", message, "write as many key-value heads as heads")
    return _sharing(layers, SharedBlock(feed_rank=rank, attention_rank=beside_attention))


def _sharing(layers: tuple[Layer, ...], block: SharedBlock) -> tuple[Layer, ...]:
    """The first norm of a block is over two hidden widths, and the mixer has one."""
    return interned(
        [
            replace(layer, mlp=None, norms=1)
            if layer.attention is None
            else replace(layer, attention=replace(layer.attention, doubled=True), norms=4, shared=block)
            for layer in layers
        ]
    )


def shared_blocks(fields: ConfigFields, layers: tuple[Layer, ...]) -> int | None:
    """Return how many blocks the layers share: one, but in Zamba2, and no more than there are layers that do. Where the
    output projection is its own, transformers ties no blocks either (modeling_utils.py 5.24:
    `get_expanded_tied_weights_keys`)."""
    shared = [layer.shared for layer in layers if layer.shared is not None]
    sharing, several = len(shared), any(block.feed_rank is not None for block in shared)
    blocks = (fields.size("num_mem_blocks") if several else None) or 1
    if sharing > blocks and not fields.flag("tie_word_embeddings", default=True):
        message = "is false, and transformers then lets no layers share blocks"
        fields.section.report("tie_word_embeddings", message, "write true")
    return min(blocks, sharing) or None
