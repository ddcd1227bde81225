"""`Calibrated`: any efficiency model, with the calibration of a site on top of the seconds of whole iterations.

A search runs on the base model: what it proves, and which of two plans is faster, are that model's. Then all plans of
an answer are moved alike, by what the runs say of one of them, the anchor: the best plan, or the user's own. Were each
moved by its own, those that nobody has run would seem fast for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.compute.operator_table import OperatorTable
from shardwright.cost.layers.source import LayerSource, layer_source
from shardwright.cost.network.collectives import Fabric
from shardwright.cost.site.calibration import SiteCalibration, effect_of
from shardwright.cost.site.setting import Setting, setting_of
from shardwright.errors import bad
from shardwright.plans.plan import Plan, SiteEffect, TimeBreakdown
from shardwright.records import record
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import Job


@record(slots=False)
class Calibrated:
    """`base`, with what `site` says of whole plans: of the setting `anchor` for all of them, of each its own where
    there is none."""

    base: Efficiency
    site: SiteCalibration
    anchor: Setting | None = None

    def operator_seconds(self, gpu: Gpu, job: Job, operators: OperatorTable) -> Floats:
        """Return the base model's times, [operators, M]."""
        return self.base.operator_seconds(gpu, job, operators)

    def fabric(self, pool: NodePool) -> Fabric:
        """Return the base model's links."""
        return self.base.fabric(pool)


@layer_source.register
def _calibrated_source(efficiency: Calibrated) -> LayerSource:
    return layer_source(efficiency.base)


def calibrated(base: Efficiency, site: SiteCalibration, profiles: Sequence[str] = ()) -> Calibrated:
    """Return `base`, which has the measured profiles of the GPUs `profiles` in it, with a calibration on top. Raises
    SpecError where the calibration was made with others: it says what is left beyond them."""
    if set(site.profiles) != set(profiles):
        made = f"with the profiles of {', '.join(site.profiles)}" if site.profiles else "without a profile"
        given = f"those of {', '.join(sorted(profiles))} are given" if profiles else "none is given"
        hint = "give the same `profile=` to both, or calibrate again"
        raise bad("`calibration=`", f"was made {made}, and {given}: what is left beyond them differs", hint)
    return Calibrated(base=base, site=site)


def without_site(efficiency: Efficiency | None) -> Efficiency | None:
    """Return an efficiency model without the calibration of a site that it may have."""
    return efficiency.base if isinstance(efficiency, Calibrated) else efficiency


def anchored(efficiency: Efficiency | None, plan: Plan) -> Efficiency | None:
    """Return an efficiency model whose calibration moves every plan as it moves `plan`, a costed one; one without a
    calibration, or with an anchor, as it is."""
    if not isinstance(efficiency, Calibrated) or efficiency.anchor is not None or plan.prediction is None:
        return efficiency
    return replace(efficiency, anchor=setting_of(plan, plan.prediction.time))


def on_site(plan: Plan, time: TimeBreakdown, efficiency: Efficiency) -> tuple[TimeBreakdown, SiteEffect | None]:
    """Return the breakdown of a plan on the site of `efficiency`, every term moved alike, and what moved it; the
    breakdown as it is and None where no calibration was given."""
    if not isinstance(efficiency, Calibrated):
        return time, None
    effect = effect_of(efficiency.site, setting_of(plan, time))
    if efficiency.anchor is not None:
        effect = replace(effect, factor=effect_of(efficiency.site, efficiency.anchor).factor)
    terms = {term.name: getattr(time, term.name) * effect.factor for term in fields(time)}
    return TimeBreakdown(**terms), effect


def narrowed(interval: tuple[float, float], seconds: float, effect: SiteEffect | None) -> tuple[float, float]:
    """Return an interval around `seconds` as narrow as the runs of a site make it."""
    if effect is None or not effect.runs:
        return interval
    low, high = (seconds * (end / seconds) ** effect.narrower for end in interval)
    return low, high
