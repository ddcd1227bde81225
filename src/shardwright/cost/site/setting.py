"""What of a plan decides how much of a deviation it shares with a run: kind of model, arithmetic, where its time goes,
how it is split. Nothing of it names the model."""

from __future__ import annotations

import math
from typing import Literal

from shardwright.plans.plan import Plan, TimeBreakdown
from shardwright.records import record
from shardwright.spec.model import Kind, family_of, training_kind

Reach = Literal["machine", "machines", "sites"]
REACHES: tuple[Reach, ...] = ("machine", "machines", "sites")  # boundaries that messages cross, nearest first
RECOMPUTED = {"none": 0.0, "selective": 1.0, "full": 2.0}  # numeric: steps of a scale
LINKS = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline", "data_parallel")
COMPUTE = ("forward", "backward", "recompute", "optimizer")


@record
class Setting:
    """One plan as a point. `compute`, `host` and `links` are parts of its predicted time without bubbles; `recompute`
    is 0 for none, 1 for selective, 2 for full; `attended` are the tokens that attention goes over. `gpu_types` are
    kinds of GPUs, joined by +; `reach` is the farthest boundary that its messages cross."""

    kind: Kind
    family: str
    precision: str
    framework: str
    gpu_types: str
    reach: Reach
    compute: float
    host: float
    links: float
    tp: int
    pp: int
    micro_batch: int
    gpus: int
    hidden: int
    attended: float
    recompute: float

    @property
    def coordinates(self) -> tuple[float, ...]:
        """The point in the units of the kernel: likeness falls by a third over 1.4 of them."""
        shares = tuple(2.0 * share for share in (self.compute, self.host, self.links))
        halves = tuple(math.log2(size) / 2.0 for size in (self.tp, self.pp, self.micro_batch))
        sizes = (math.log2(size) / 1.5 for size in (self.hidden, self.attended))
        return (*shares, *halves, math.log2(self.gpus) / 3.0, *sizes, self.recompute / 1.5)

    @property
    def place(self) -> tuple[str, str]:
        """What a run must share with a plan to say anything of it."""
        return self.framework, self.gpu_types


def setting_of(plan: Plan, time: TimeBreakdown) -> Setting:
    """Return the setting of a plan with its predicted breakdown; of unequal replicas the one of most GPUs counts."""
    used = plan.gpus_by_type
    pools = [pool for pool in plan.cluster.pools if used[pool.gpu.name]]
    replica = max(plan.replicas, key=lambda candidate: candidate.gpus)
    parts = {name: _seconds(time, names) for name, names in (("compute", COMPUTE), ("links", LINKS))}
    parts["host"] = time.framework_seconds
    total = sum(parts.values()) or 1.0
    levels = [RECOMPUTED[stage.recompute.granularity] for stage in replica.stages]
    return Setting(
        kind=training_kind(plan.model, adapters=bool(plan.job.adapters)),
        family=family_of(plan.model),
        precision=plan.job.precision,
        framework=plan.job.framework,
        gpu_types="+".join(sorted({pool.gpu.kind for pool in pools})),
        reach=_reach(plan),
        **{name: seconds / total for name, seconds in parts.items()},
        tp=max(stage.tensor_parallel for stage in replica.stages),
        pp=len(replica.stages),
        micro_batch=plan.micro_batch,
        gpus=plan.gpus,
        hidden=plan.model.hidden,
        attended=plan.job.attended_tokens,
        recompute=sum(levels) / len(levels),
    )


def _seconds(time: TimeBreakdown, names: tuple[str, ...]) -> float:
    return float(sum(getattr(time, f"{name}_seconds") for name in names))


def _reach(plan: Plan) -> Reach:
    used = plan.gpus_by_type
    pools = [pool for pool in plan.cluster.pools if used[pool.gpu.name]]
    if len({pool.site for pool in pools}) > 1:
        return "sites"
    within = len({pool.machines for pool in pools}) == 1 and plan.gpus <= pools[0].gpus_of_machine
    return "machine" if within else "machines"
