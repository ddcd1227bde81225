"""The sizes of what mixes tokens in layers without attention: projections, convolutions, biases. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.spec.mixers import GatedDelta, Mamba2, Mixer, ShortConvolution

Rows = Mapping[str, int]


def rows_of(mixer: Mixer) -> Rows:
    """Return the projections into a mixer with their rows, in the order in which files of Mamba-2 have them."""
    if isinstance(mixer, Mamba2):
        pair = mixer.groups * mixer.state
        return {"gate": mixer.inner, "value": mixer.inner, "key": pair, "query": pair, "step": mixer.heads}
    if isinstance(mixer, GatedDelta):
        keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
        rows = {"query": keys, "key": keys, "value": values, "gate": values}
        return rows | {"rate": mixer.value_heads, "decay_step": mixer.value_heads}
    assert isinstance(mixer, ShortConvolution), "others are refused"
    return dict.fromkeys(("before", "after", "value"), mixer.channels)


def convolved_of(mixer: Mixer) -> Rows:
    """Return the projections that a convolution follows, with their channels, in the order of its channels in files."""
    if isinstance(mixer, ShortConvolution):
        names: tuple[str, ...] = ("value",)
    else:
        names = ("value", "key", "query") if isinstance(mixer, Mamba2) else ("query", "key", "value")
    return {name: rows_of(mixer)[name] for name in names}


def biases_of(mixer: Mixer) -> tuple[bool, bool, bool]:
    """Return whether the projections into a mixer have biases, its convolutions, and the projection out of it."""
    if isinstance(mixer, Mamba2):
        return mixer.bias, mixer.convolution_bias, mixer.out_bias
    biased = isinstance(mixer, ShortConvolution) and mixer.bias
    return biased, biased, biased
