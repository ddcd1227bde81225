"""Latency and bandwidth of links from measured collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.network.collectives import SECONDS, Fabric, Group, transfer_seconds
from shardwright.records import record
from shardwright.spec.read.machine_profile import CollectiveTime

GRID, ROUNDS = 41, 4  # numeric
WIDEST = np.log(1e4)  # how far a link may be from the base model's, either way; numeric


@record
class FittedLink:
    """Latency of one step in seconds, and bytes per second in one direction."""

    latency_seconds: float
    bytes_per_second: float


def measured_link(base: Fabric, rows: Sequence[CollectiveTime], *, inter: bool) -> FittedLink | None:
    """Return the link whose collectives are nearest to the measured ones, None without rows.

    Nearest is the least sum of |log(predicted / measured)|, so that small and large messages count alike and outliers
    little. The time of a collective is linear in latency and in the inverse of bandwidth; the best pair is found on a
    grid around the base model's, which is narrowed down.
    """
    chosen = [row for row in rows if (row.scope == "inter_node") == inter]
    if not chosen:
        return None
    steps = np.array([_seconds(base, row, inter=inter, latency=1.0, inverse_rate=0.0) for row in chosen])
    moved = np.array([_seconds(base, row, inter=inter, latency=0.0, inverse_rate=1.0) for row in chosen])
    measured = np.log([row.seconds for row in chosen])
    latency, inverse = np.log(_latency(base, inter)), -np.log(_rate(base, inter))
    width = float(WIDEST)
    for _ in range(ROUNDS):
        around = np.linspace(-width, width, GRID)
        latencies, inverses = latency + around[:, None, None], inverse + around[None, :, None]
        predicted = np.log(steps * np.exp(latencies) + moved * np.exp(inverses))
        loss = np.abs(predicted - measured).sum(axis=2)
        best = np.unravel_index(int(loss.argmin()), loss.shape)
        latency, inverse = latency + around[best[0]], inverse + around[best[1]]
        width *= 4.0 / (GRID - 1)
    return FittedLink(latency_seconds=float(np.exp(latency)), bytes_per_second=float(np.exp(-inverse)))


def with_links(base: Fabric, intra: FittedLink | None, inter: FittedLink | None) -> Fabric:
    """Return the links of the base model with the measured ones in their place."""
    if intra is not None:
        base = _with(base, intra.latency_seconds, intra.bytes_per_second, inter=False)
    if inter is not None:
        base = _with(base, inter.latency_seconds, inter.bytes_per_second, inter=True)
    return base


def _seconds(base: Fabric, row: CollectiveTime, *, inter: bool, latency: float, inverse_rate: float) -> float:
    """Return the time of a collective over links of a given latency and inverse bandwidth."""
    links = _with(base, latency, 1.0 / inverse_rate if inverse_rate else np.inf, inter=inter)
    if inter:
        # Every rank is the only one of its machine in the group, so nothing goes over the links inside.
        groups = Group(size=np.array([row.ranks]), local=np.array([1]))
    else:
        groups = Group(size=np.array([row.ranks]), local=np.array([row.ranks]))
    size = np.array([float(row.bytes)])
    if row.collective == "send":
        return float(transfer_seconds(links, size, np.array([inter]))[0])
    return float(SECONDS[row.collective](links, groups, size)[0])


def _with(base: Fabric, latency: float, rate: float, *, inter: bool) -> Fabric:
    if inter:
        return replace(base, inter_latency_seconds=latency, inter_bytes_per_second=rate)
    return replace(base, intra_latency_seconds=latency, intra_bytes_per_second=rate)


def _latency(base: Fabric, inter: bool) -> float:
    return base.inter_latency_seconds if inter else base.intra_latency_seconds


def _rate(base: Fabric, inter: bool) -> float:
    return base.inter_bytes_per_second if inter else base.intra_bytes_per_second
