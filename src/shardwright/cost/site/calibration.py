"""`SiteCalibration`: what was measured of a site, and what it says of a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.site.process import NOISE, posterior, prior_variance
from shardwright.cost.site.setting import REACHES, Setting
from shardwright.plans.plan import SiteEffect
from shardwright.records import record
from shardwright.spec.model import Kind

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
