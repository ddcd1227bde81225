"""What planning needs beyond measured layers, made from the profile where nobody says it: a model of the profile's
sizes, and GPUs that the catalogue does not have."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardwright.errors import Problem, SpecError
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.cluster import Gpu
from shardwright.spec.layer_profile import LayerProfile, LayerTimes
from shardwright.spec.model import Attention, Layer, Mlp, Model, uniform_layers
from shardwright.spec.read.custom_gpu import stand_in
from shardwright.units import GIGA

STAND_IN = "layer profile"  # source of a GPU of which only the profile knows
HEAD_WIDTH = 64
WIDTHS = {"fp32": 4.0}  # bytes of a weight or an activation; 2 in any other precision


def stand_in_model(profile: LayerProfile, precision: str) -> Model:
    """Return a GPT with the hidden size, parameters and vocabulary of a profile of a model that nobody describes.

    Raises SpecError where the profile does not say what these are.
    """
    entry = min(profile.entries, key=lambda candidate: (candidate.tensor_parallel, candidate.micro_batch))
    problems = [
        Problem("`profile=`", f"has no {key}, and no model is given", f"give `model=`, or add {key} of every position")
        for key in ("weight_bytes", "output_bytes")
        if not getattr(entry, key)
    ]
    if problems:
        raise SpecError(*problems)
    width = WIDTHS.get(precision, 2.0)
    hidden = max(round(entry.output_bytes[1] / (width * entry.micro_batch * profile.seq_len)), 1)
    weights = [size * entry.tensor_parallel / width for size in entry.weight_bytes]
    vocab = max(round(weights[-1] / hidden) - 2, 1)
    degrees = math.lcm(*(timed.tensor_parallel for timed in profile.entries))
    heads = _heads(hidden, degrees)
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        value_head_dim=max(hidden // heads, 1),
        qkv_bias=True,
        out_bias=True,
    )
    layer = sum(weights[1:-1]) / profile.layers
    inner = round((layer - attention.parameters(hidden) - 5 * hidden) / (2 * hidden + 1) / degrees)
    mlp = Mlp(width=max(inner, 1) * degrees, gated=False, bias=True)
    rows = round(weights[0] / hidden) - vocab
    positions = rows if rows >= profile.seq_len else 0  # fewer are padding of the vocabulary
    return Model(
        name=profile.model,
        family="gpt2",
        hidden=hidden,
        vocab=vocab,
        layers=uniform_layers(Layer(attention=attention, mlp=mlp, moe=None), profile.layers),
        norm="layernorm",
        position="learned" if positions else "rope",
        max_position=profile.seq_len,
        learned_positions=positions,
        activation="gelu",
        assumed=(f"a GPT of the sizes in the profile: hidden {hidden}, vocabulary {vocab}, {heads} heads",),
    )


def _heads(hidden: int, degrees: int) -> int:
    """Return a number of heads that every measured degree divides, of about the usual width."""
    wanted = max(hidden // HEAD_WIDTH, degrees)
    return max(wanted // degrees, 1) * degrees


def stand_in_gpus(profile: LayerProfile, model: Model, precision: str) -> Mapping[str, Gpu]:
    """Return the GPUs of a profile that the catalogue does not have, by name. Their peak is what the fastest layer
    measured reaches; how much memory they have, and which links, is for the cluster and the profile to say."""
    return {name: _gpu(profile, name, model, precision) for name in profile.gpus if name not in gpus()}


def _gpu(profile: LayerProfile, name: str, model: Model, precision: str) -> Gpu:
    peak = max(flops_per_second(entry, model, profile.seq_len) for entry in profile.of(name))
    return stand_in(
        name=name,
        peak_flops=tuple((dtype, peak) for dtype in dict.fromkeys((precision, "bf16"))),
        memory_bytes=0.0,
        memory_bytes_per_second=1000 * GIGA,
        source=STAND_IN,
    )


def flops_per_second(entry: LayerTimes, model: Model, seq_len: int) -> float:
    """Return the speed of the fastest layer: 6 FLOPs a token and parameter, and the products of causal attention."""
    tokens = entry.micro_batch * seq_len
    rates = []
    for place, layer in enumerate(model.layers, start=1):
        parameters = model.dense_layer_parameters(layer) + model.expert_layer_parameters(layer)
        flops = 6.0 * tokens * (parameters + seq_len * (layer.attention.out_width if layer.attention else 0))
        rates.append(flops / entry.tensor_parallel / (entry.forward_seconds[place] + entry.backward_seconds[place]))
    return max(rates)
