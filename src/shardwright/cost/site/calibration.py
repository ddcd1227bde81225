"""`SiteCalibration`: what was measured of a site, and what it says of a plan: a Gaussian process, in closed form.

With y = log(measured / predicted) of the runs and settings s,

    k(s, s') = a² + b² [same kind and family] + c² [same arithmetic] + d² [both] exp(-|x - x'|² / (2 · r²)) + e² l l'
    mean     = k(s, S) (K + N)⁻¹ y,     variance = k(s, s) - k(s, S) (K + N)⁻¹ k(S, s)

(Rasmussen and Williams 2006, eq. 2.25 and 2.26), N the noise of the runs on the diagonal and l the parts of time on
links. Little moves a whole site alike, and a family of models or an arithmetic little more; most is shared by like
strategies of one family, and slow links slow all that is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.site.setting import REACHES, Setting
from shardwright.plans.plan import SiteEffect
from shardwright.records import record
from shardwright.spec.model import Kind

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


MOST_RUNS = 50  # of a calibration, so that every plan is moved in microseconds; chosen, 30 to 100
KINDS: tuple[Kind, ...] = ("dense", "moe", "hybrid", "adapters")


@record
class SiteRun:
    """A configuration that ran: its setting, what an iteration took and what is predicted for it without this site, and
    the standard deviation of log(measured / predicted). `twins` counts runs of the same configuration, of which the
    median stands here. `model` is empty in a calibration to share."""

    setting: Setting
    measured_seconds: float
    predicted_seconds: float
    spread: float = NOISE
    twins: int = 1
    model: str = ""

    @property
    def log_ratio(self) -> float:
        return math.log(self.measured_seconds / self.predicted_seconds)


@record
class SiteCalibration:
    """The runs of a site. `profiles` are the GPUs whose measured profile their predictions had in them."""

    runs: tuple[SiteRun, ...]
    profiles: tuple[str, ...] = ()

    def runs_for(self, setting: Setting) -> tuple[SiteRun, ...]:
        """Return the runs that say something of a setting: of the same framework and GPUs, and none where its messages
        cross a boundary that those of no such run crossed."""
        alike = tuple(run for run in self.runs if run.setting.place == setting.place)
        far = max((REACHES.index(run.setting.reach) for run in alike), default=-1)
        return alike if far >= REACHES.index(setting.reach) else ()

    def why_not(self, setting: Setting) -> str:
        """Return why no run says anything of a setting, in words; empty where some does."""
        if self.runs_for(setting):
            return ""
        gpus = {run.setting.gpu_types for run in self.runs if run.setting.framework == setting.framework}
        if not gpus:
            ran = ", ".join(sorted({run.setting.framework for run in self.runs}))
            return f"its runs are of {ran}, not of {setting.framework}"
        if setting.gpu_types not in gpus:
            return f"its runs are on {', '.join(sorted(gpus))}, not on {setting.gpu_types}"
        between = {"machines": "stayed within one machine", "sites": "stayed within one site"}
        return f"its runs {between[setting.reach]}, and what joins several is not known from them"


def effect_of(calibration: SiteCalibration, setting: Setting) -> SiteEffect:
    """Return what a calibration does to the prediction of a setting."""
    runs = calibration.runs_for(setting)
    if not runs:
        return SiteEffect(runs=0, factor=1.0, narrower=1.0, same_kind=0, unsaid=calibration.why_not(setting))
    mean, variance = _posterior(runs, (setting,))
    left = (float(variance[0]) + NOISE**2) / (float(prior_variance((setting,))[0]) + NOISE**2)
    kin = sum((run.setting.kind, run.setting.family) == (setting.kind, setting.family) for run in runs)
    return SiteEffect(runs=len(runs), factor=math.exp(float(mean[0])), narrower=math.sqrt(left), same_kind=kin)


def _moved(runs: Sequence[SiteRun]) -> Floats:
    return np.array([run.log_ratio for run in runs])


def _noise(runs: Sequence[SiteRun]) -> Floats:
    return np.array([run.spread for run in runs])


@lru_cache(maxsize=4096)
def _posterior(runs: tuple[SiteRun, ...], settings: tuple[Setting, ...]) -> tuple[Floats, Floats]:
    return posterior([run.setting for run in runs], _moved(runs), _noise(runs), settings)


def left_out_means(calibration: SiteCalibration) -> Floats:
    """Return, for every run, the mean of log(measured / predicted) that the other runs give it, [N]; 0 where they say
    nothing of it."""
    means = np.zeros(len(calibration.runs))
    for place, run in enumerate(calibration.runs):
        others = SiteCalibration(runs=(*calibration.runs[:place], *calibration.runs[place + 1 :]))
        runs = others.runs_for(run.setting)
        if runs:
            means[place] = _posterior(runs, (run.setting,))[0][0]
    return means
