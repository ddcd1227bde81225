"""The Gaussian process by which runs of a site move predictions of others, in closed form.

With y = log(measured / predicted) of the runs and settings s,

    k(s, s') = a² + b² [same kind and family] + c² [same arithmetic] + d² [both] exp(-|x - x'|² / (2 · r²)) + e² l l'
    mean     = k(s, S) (K + N)⁻¹ y,     variance = k(s, s) - k(s, S) (K + N)⁻¹ k(S, s)

(Rasmussen and Williams 2006, eq. 2.25 and 2.26), N the noise of the runs on the diagonal and l the parts of time on
links. Little moves a whole site alike, and a family of models or an arithmetic little more; most is shared by like
strategies of one family, and slow links slow all that is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.site.setting import Setting

# Chosen by leaving sources of published runs out (`python -m benchmarks.calibration`): with a, b, c three times as
# large and r twice, a single run makes other predictions of its site worse.
SITE = 0.05  # a: standard deviation of what a whole site shares; chosen, 0 to 0.05
FAMILY = 0.05  # b: of what its runs of one kind and family of models share beyond; chosen, 0.05 to 0.15
PRECISION = 0.05  # c: of one arithmetic; chosen, 0 to 0.05
STRATEGY = 0.30  # d: of like strategies; chosen, 0.2 to 0.3
REACH = 0.85  # r: distance of strategies within which they are alike; chosen, 0.7 to 1
LINKS = 0.20  # e: of the time of messages; chosen, 0 to 0.3
NOISE = 0.10  # of a run, unless its own steps spread more; chosen, 0.07 to 0.12


def prior_variance(settings: Sequence[Setting]) -> Floats:
    """Return the variance of settings of which no run says anything, [N]."""
    return SITE**2 + FAMILY**2 + PRECISION**2 + STRATEGY**2 + (LINKS * _links(settings)) ** 2


def covariance(some: Sequence[Setting], others: Sequence[Setting]) -> Floats:
    """Return the covariance of two sequences of settings, [N, M]."""
    family = _same([(a.kind, a.family) for a in some], [(b.kind, b.family) for b in others])
    precision = _same([a.precision for a in some], [b.precision for b in others])
    square = ((_coordinates(some)[:, None] - _coordinates(others)[None]) ** 2).sum(axis=2)
    likeness = np.exp(-square / (2.0 * REACH**2))
    shared = SITE**2 + FAMILY**2 * family + PRECISION**2 * precision
    links = LINKS**2 * np.outer(_links(some), _links(others))
    return np.asarray(shared + STRATEGY**2 * family * precision * likeness + links)


def posterior(
    runs: Sequence[Setting], moved: Floats, noise: Floats, settings: Sequence[Setting]
) -> tuple[Floats, Floats]:
    """Return mean and variance of log(measured / predicted) at `settings` [M] after runs with log ratios `moved` [N]
    and standard deviations `noise` [N]."""
    across = covariance(settings, runs)
    known = np.linalg.solve(covariance(runs, runs) + np.diag(noise**2), across.T)
    variance = prior_variance(settings) - (across * known.T).sum(axis=1)
    return np.asarray(known.T @ moved), np.maximum(variance, 0.0)


def _links(settings: Sequence[Setting]) -> Floats:
    return np.array([setting.links for setting in settings])


def _coordinates(settings: Sequence[Setting]) -> Floats:
    return np.array([setting.coordinates for setting in settings], dtype=float)


def _same(some: Sequence[object], others: Sequence[object]) -> Floats:
    return np.array([[float(a == b) for b in others] for a in some]).reshape(len(some), len(others))
