"""Mixers of tokens that are no softmax attention: one module a kind, with everything that follows from its shape.

* `work`: what every kind tells of itself
* `mamba`: Mamba-1
* `mamba2`: Mamba-2
* `delta`: gated delta net and Kimi delta attention
* `lightning`: lightning attention
* `rwkv7`: RWKV-7
* `convolution`: the short convolution of LFM2
* `recurrence`: the gated linear recurrence of RecurrentGemma
"""

from __future__ import annotations

from shardwright.spec.mixers.convolution import ShortConvolution
from shardwright.spec.mixers.delta import GatedDelta
from shardwright.spec.mixers.lightning import Lightning
from shardwright.spec.mixers.mamba import Mamba
from shardwright.spec.mixers.mamba2 import Mamba2
from shardwright.spec.mixers.recurrence import GatedRecurrence
from shardwright.spec.mixers.rwkv7 import Rwkv7

__all__ = ["GatedDelta", "GatedRecurrence", "Lightning", "Mamba", "Mamba2", "Mixer", "Rwkv7", "ShortConvolution"]

Mixer = Mamba | Mamba2 | GatedDelta | Lightning | Rwkv7 | ShortConvolution | GatedRecurrence
"""The closed list of kinds. Plan files name a kind by its class."""
