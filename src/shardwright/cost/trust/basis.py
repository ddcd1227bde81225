"""What a prediction rests on, and so how sure it is: published runs like it, or layers that the user has measured."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.cost.compute.efficiency import Efficiency, peak_flops
from shardwright.cost.layers.measured import MeasuredLayers
from shardwright.cost.trust.evidence import Setting, distances, nearest, published
from shardwright.cost.trust.interval import interval_at
from shardwright.plans.plan import Evidence
from shardwright.spec.cluster import Gpu
from shardwright.spec.job import Job
from shardwright.spec.model import Model


def grounds(
    seconds: float, settings: Sequence[Setting], efficiency: Efficiency
) -> tuple[tuple[float, float], tuple[Evidence, ...]]:
    """Return the 80 % interval of a predicted time and the published runs nearest to any of its `settings`. Measured
    layers are the evidence themselves, as good as a published run of the same setting."""
    if isinstance(efficiency, MeasuredLayers):
        return interval_at(seconds, settings[0].framework, 0.0), ()
    far = [float(distances(setting, published()).min()) for setting in settings]
    intervals = [
        interval_at(seconds, setting.framework, distance) for setting, distance in zip(settings, far, strict=True)
    ]
    interval = min(low for low, _ in intervals), max(high for _, high in intervals)
    return interval, nearest(settings[far.index(min(far))])


def attainable_flops(efficiency: Efficiency, gpu: Gpu, model: Model, job: Job) -> float:
    """Return the peak that a utilisation is a part of: the data sheet's, or that of the arithmetic with which layers
    turned out to be faster than that. Raises SpecError where the GPU lacks the precision."""
    stated = peak_flops(gpu, job.precision)
    if not isinstance(efficiency, MeasuredLayers):
        return stated
    fastest = efficiency.flops_per_second(gpu, model)
    return stated if fastest <= stated else max(gpu.peak("tf32") or 0.0, fastest)
