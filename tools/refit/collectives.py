"""Fits what collectives make of links: seven numbers for each kind of link, three for networks. Switches and meshes
have them for each architecture too; machines on PCIe differ by how their slots are joined more than by their GPUs.

The logarithms of the numbers minimise the logarithms of predicted over measured times, under a robust loss, with a
normal prior on each, since few machines with each kind of link were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from tools.refit.collective_rows import Series, gpu_names

from shardwright.arrays import Floats
from shardwright.cost.learned.links import KINDS, PCIE, LinkFit, LinkFits, NetworkFit, fit_of, link_kind

USUAL = LinkFit(
    efficiency=0.7,
    pair_loss=0.4,
    reduce_gain=1.12,
    call_steps=6.0,
    ramp_bytes=1.5e6,
    ramp_bytes_per_rank=6e5,
    ramp_slowdown=1.9,
)
SPREAD = LinkFit(
    efficiency=1.0,
    pair_loss=0.7,
    reduce_gain=0.15,
    call_steps=0.3,
    ramp_bytes=0.7,
    ramp_bytes_per_rank=0.7,
    ramp_slowdown=0.3,
)
# The catalogue's latencies are those of small messages; large ones take NCCL's Simple protocol, 14 µs a step in place
# of 5 (NVIDIA/nccl@01afd20a77b5:src/graph/tuning.cc). Only EFA was measured well, whose latency is itself assumed.
USUAL_NETWORK = NetworkFit(efficiency=0.9, latency=2.8, ramp_bytes=1e6)
NETWORK_SPREAD = NetworkFit(efficiency=0.2, latency=0.1, ramp_bytes=0.7)
LARGEST_NETWORK = NetworkFit(efficiency=1.0, latency=10.0, ramp_bytes=1e8)
Fit = TypeVar("Fit", LinkFit, NetworkFit)
SCALE = 0.1  # of the logarithms of time that a fit should explain
LARGEST = LinkFit(
    efficiency=1.0,
    pair_loss=1.6,
    reduce_gain=1.4,
    call_steps=15.0,
    ramp_bytes=2e7,
    ramp_bytes_per_rank=1e7,
    ramp_slowdown=4.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFits:
    """The fits of links by kind and architecture, and that of networks."""

    links: LinkFits
    network: NetworkFit

    def predicted(self, measured: Series) -> Floats:
        """Return the predicted seconds of a series, [S]."""
        return measured.predicted(fit_of(self.links, measured.pool), self.network)


def fit_collectives(series: Sequence[Series]) -> CollectiveFits:
    """Return the fits to all series."""
    inside = [measured for measured in series if not measured.crosses]
    fits: dict[tuple[str, str], LinkFit] = {}
    for kind in KINDS:
        of_kind = [measured for measured in inside if link_kind(measured.pool) == kind]
        fits[kind, ""] = fit_link(of_kind, USUAL) if of_kind else USUAL
        for architecture in sorted({measured.pool.gpu.architecture for measured in of_kind if kind != PCIE}):
            of_architecture = [measured for measured in of_kind if measured.pool.gpu.architecture == architecture]
            fits[kind, architecture] = fit_link(of_architecture, fits[kind, ""])
    return CollectiveFits(links=fits, network=fit_network([measured for measured in series if measured.crosses], fits))


def fit_link(series: Sequence[Series], usual: LinkFit) -> LinkFit:
    """Return the link fit that suits `series` best; where they say little it is as `usual`."""
    return _fitted(series, lambda measured, fit: measured.predicted(fit, USUAL_NETWORK), usual, SPREAD, LARGEST)


def fit_network(series: Sequence[Series], links: LinkFits) -> NetworkFit:
    """Return the network fit that suits `series` best, given the links inside machines."""

    def predicted(measured: Series, fit: NetworkFit) -> Floats:
        return measured.predicted(fit_of(links, measured.pool), fit)

    return _fitted(series, predicted, USUAL_NETWORK, NETWORK_SPREAD, LARGEST_NETWORK)


def _fitted(
    series: Sequence[Series], predicted: Callable[[Series, Fit], Floats], usual: Fit, spread: Fit, largest: Fit
) -> Fit:
    """Return the fit, none of its numbers above `largest`, at which the predictions are nearest."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    if not series:
        return usual
    names, weights = [field.name for field in fields(usual)], _weights(series)
    centre, ends, limits = np.log(_values(usual)), _values(spread), np.log(_values(largest))

    def made(logs: Floats) -> Fit:
        return replace(usual, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def misfit(logs: Floats) -> Floats:
        fit = made(logs)
        errors = [
            w * np.log(predicted(measured, fit) / measured.seconds) for w, measured in zip(weights, series, strict=True)
        ]
        return np.concatenate([np.concatenate(errors) / SCALE, 2.0 * (logs - centre) / ends])

    bounds = np.full_like(centre, -np.inf), limits
    return made(least_squares(misfit, np.minimum(centre, limits - 1e-3), bounds=bounds, loss="soft_l1").x)


def _weights(series: Sequence[Series]) -> Floats:
    """Return the weight of each series: GPUs (by source) count by the fourth root of their rows."""
    rows: dict[tuple[str, str], int] = {}
    for measured in series:
        key = (measured.pool.gpu.name, measured.source)
        rows[key] = rows.get(key, 0) + len(measured.sizes)
    weights = np.array([rows[measured.pool.gpu.name, measured.source] ** -0.25 for measured in series])
    return np.asarray(weights / weights.mean())


def _values(fit: LinkFit | NetworkFit) -> Floats:
    return np.array([getattr(fit, field.name) for field in fields(fit)])


def left_out_collectives(series: Sequence[Series]) -> dict[str, tuple[int, float]]:
    """Return rows and median error of time, as a share, of the collectives within machines of each GPU under fits to
    the other GPUs."""
    inside = [measured for measured in series if not measured.crosses]
    errors = {}
    for gpu in gpu_names(inside):
        fits = fit_collectives([measured for measured in inside if measured.pool.gpu.name != gpu])
        held = [measured for measured in inside if measured.pool.gpu.name == gpu]
        errors[gpu] = _error(fits, held)
    return errors


def left_out_networks(series: Sequence[Series]) -> dict[str, tuple[int, float]]:
    """Return rows and median error of the collectives between machines of each source and GPU under fits to the
    others."""

    def name(measured: Series) -> str:
        return f"{measured.pool.gpu.name} × {measured.ranks} ({measured.source})"

    across = [run for run in series if run.crosses]
    errors = {}
    for held in sorted({name(run) for run in across}):
        fits = fit_collectives([run for run in series if not run.crosses or name(run) != held])
        errors[held] = _error(fits, [run for run in across if name(run) == held])
    return errors


def random_collectives(series: Sequence[Series], *, share: float, seed: int) -> tuple[int, float]:
    """Return rows and median error on a share of the rows within machines, left out at random."""
    random = np.random.default_rng(seed)
    inside = [measured for measured in series if not measured.crosses]
    held = [random.random(len(measured.sizes)) < share for measured in inside]
    fits = fit_collectives([measured.part(~chosen) for measured, chosen in zip(inside, held, strict=True)])
    return _error(fits, [measured.part(chosen) for measured, chosen in zip(inside, held, strict=True)])


def _error(fits: CollectiveFits, series: Sequence[Series]) -> tuple[int, float]:
    ratios = np.concatenate([fits.predicted(measured) / measured.seconds for measured in series])
    return len(ratios), float(np.median(np.abs(ratios - 1.0)))
