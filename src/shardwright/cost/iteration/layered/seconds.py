"""The time of a layered iteration (Cephalo, arXiv 2411.01075 §2.2).

At each unit u all GPUs wait for its gathered weights, so the slowest one sets the pace, C_u = max_i c_iu. While unit u
computes, the weights of the next one are gathered (g) and, backward, the gradients of the one before are scattered (s):

    T = g_0 + Σ_u φ(C_u, g_{u+1})  +  Σ_u φ(C'_u, g_{u-1} + s_{u+1})  +  s_0  +  max_i optimizer_i + T_norm

    φ(C, x) = max(C, x) + δ min(C, x)        δ: what computation loses beside communication (OVERLAP_SLOWDOWN)

The head's forward and backward passes are one. Without overlap φ(C, x) = C + x. Columns are [N, U].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.layers.table import OVERLAP_SLOWDOWN
from shardwright.cost.network.collectives import exposed_seconds
from shardwright.cost.strategies import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Communication of an iteration, [N, U] each: what runs beside the forward and the backward pass of each unit (the
    head's is in `backward`), and what nothing hides, [N]."""

    forward: Floats
    backward: Floats
    alone: Floats


def beside(gather: Floats, scatter: Floats) -> Beside:
    """Return where the gathers and scatters of units run. The head is there when its backward pass begins."""
    zero = np.zeros_like(gather[:, :1])
    forward = np.concatenate([gather[:, 1:], zero], axis=1)
    before = np.concatenate([zero, gather[:, :-1]], axis=1)
    after = np.concatenate([scatter[:, 1:], zero], axis=1)
    return Beside(forward=forward, backward=before + after, alone=gather[:, 0] + scatter[:, 0])


def pass_seconds(forward: Floats, backward: Floats, moved: Beside, *, overlap: bool = True) -> Floats:
    """Return the seconds of all passes, [N], where the slowest GPU takes `forward` and `backward` at each unit."""
    head = forward[:, -1:] + backward[:, -1:]
    compute = np.concatenate([forward[:, :-1], backward[:, :-1], head], axis=1)
    traffic = np.concatenate([moved.forward[:, :-1], moved.backward], axis=1)
    hidden = exposed_seconds(traffic, compute, slowdown=OVERLAP_SLOWDOWN) if overlap else traffic
    return np.asarray((compute + hidden).sum(axis=1) + moved.alone)
