"""Blocks other than a transformer's in Megatron-LM's arguments (core_v0.19).

Blocks of a mixer or a feed-forward alone are written as a pattern of letters, one a block, with `|` at the end of each
virtual stage (megatron/core/models/hybrid/hybrid_layer_allocation.py 18-26): `pretrain_hybrid.py` builds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.exporters.megatron.positions import Arguments
from shardwright.spec.mixers import Mamba2
from shardwright.spec.model import Layer, Model

GPT, HYBRID = "pretrain_gpt.py", "pretrain_hybrid.py"
STACK = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
# What MambaMixer takes from no argument (megatron/core/ssm/mamba_mixer.py 177-192).
WIDTH = 4  # documented


def by_pattern(model: Model) -> bool:
    """Whether a model has blocks that only a pattern of letters tells."""
    return any(isinstance(kind.mixer, Mamba2) or kind.sublayers < 2 for kind in model.kinds)


def program(model: Model) -> str:
    """Return the script of Megatron-LM that trains a model."""
    return HYBRID if by_pattern(model) else GPT


def pattern_arguments(model: Model, layer_counts: Sequence[int]) -> Arguments:
    """Return the pattern of a model whose virtual stages have so many layers each, in order of execution, and the sizes
    of Mamba-2."""
    letters, stages = iter("".join(_letter(layer) for layer in model.layers)), []
    for count in layer_counts:
        stages.append("".join(next(letters) for _ in range(count)))
    arguments: list[tuple[str, ...]] = [("--hybrid-layer-pattern", "|".join(stages)), ("--spec", *STACK)]
    mixer = next((kind.mixer for kind in model.kinds if isinstance(kind.mixer, Mamba2)), None)
    if mixer is not None:
        arguments += [
            ("--mamba-num-heads", str(mixer.heads)),
            ("--mamba-head-dim", str(mixer.head_dim)),
            ("--mamba-num-groups", str(mixer.groups)),
            ("--mamba-state-dim", str(mixer.state)),
        ]
    return tuple(arguments)


def _letter(layer: Layer) -> str:
    if layer.mixer is not None:
        return "M"
    return "*" if layer.attention is not None else "-" if layer.mlp is not None else "E"
