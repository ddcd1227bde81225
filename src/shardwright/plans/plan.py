"""`Plan`: the one result. It is searched, costed, explained, exported, run and re-planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Literal

from shardwright.records import record
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.units import SECONDS_PER_HOUR

Granularity = Literal["none", "selective", "full"]
Method = Literal["uniform", "block"]
Sharding = Literal["none", "zero1", "zero2", "zero3"]
RankOrder = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]
PLAN_VERSION = 2
DEGREES = ("tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel")  # of a stage


@record
class Recompute:
    """Activation recomputation of a stage, in Megatron-LM's terms.

    `selective` recomputes core attention. `full` with method `uniform` checkpoints groups of `layers` layers; with
    method `block` it checkpoints the first `layers` layers of each virtual stage singly and keeps the others.
    """

    granularity: Granularity = "none"
    method: Method | None = None
    layers: int | None = None


@record
class Stage:
    """A group of `tensor_parallel * context_parallel` GPUs that holds ranges of layers.

    `layers` has one half-open range for each virtual stage, in the order of their execution. Experts of a layer are
    split over `expert_parallel` ranks, each expert's matrices over `expert_tensor_parallel`.
    """

    gpu: str
    tensor_parallel: int
    context_parallel: int
    expert_parallel: int
    expert_tensor_parallel: int
    layers: tuple[tuple[int, int], ...]
    recompute: Recompute

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.context_parallel

    @property
    def layer_count(self) -> int:
        return sum(end - start for start, end in self.layers)


@record
class Replica:
    """`count` equal data-parallel copies of the model, each a pipeline that takes `micro_batches` a step.

    In a layered plan each copy is one GPU with two shares: it takes `rows` samples a step, in micro-batches as equal as
    can be, and keeps `state` of the `OptimizerPlan.parts` of weights, gradients and optimizer state.
    """

    count: int
    micro_batches: int
    stages: tuple[Stage, ...]
    rows: int | None = None
    state: int | None = None

    @property
    def gpus(self) -> int:
        return self.count * sum(stage.gpus for stage in self.stages)

    def samples(self, micro_batch: int) -> int:
        """Return the samples that a copy takes a step, where the plan's micro-batch has `micro_batch`."""
        return self.micro_batches * micro_batch if self.rows is None else self.rows

    def sizes(self, micro_batch: int) -> tuple[int, ...]:
        """Return the samples of each micro-batch of a copy, larger ones first."""
        samples, more = divmod(self.samples(micro_batch), self.micro_batches)
        return (samples + 1,) * more + (samples,) * (self.micro_batches - more)

    def waves(self, micro_batch: int, waves: int) -> tuple[tuple[int, ...], ...]:
        """Return the samples of the micro-batches of each of `waves` waves, as equal as can be."""
        return tuple(self.sizes(micro_batch)[wave::waves] for wave in range(waves))


@record
class Schedule:
    """The order of passes. Of pipelines: `1f1b` with one virtual stage per rank, `interleaved` with more, and
    `zero-bubble` with one or more, which computes the gradients of weights apart, where ranks would wait (ZB-H1 and
    ZB1P; Qi et al., arXiv 2401.10241). `layered` has none: all GPUs take all micro-batches of a wave through a layer
    before the next layer, so that each layer's weights are gathered once a pass whatever the micro-batches of each GPU
    (uneven FSDP; Cephalo, arXiv 2411.01075 §3). One of `waves` waves is on its way at a time: fewer gather less, more
    keep less for the backward pass."""

    kind: Literal["1f1b", "interleaved", "zero-bubble", "layered"] = "1f1b"
    virtual_stages: int = 1
    waves: int | None = None

    @property
    def weights_apart(self) -> bool:
        """Whether gradients of weights are computed apart from those of activations."""
        return self.kind == "zero-bubble"


@record
class OptimizerPlan:
    """What data-parallel ranks shard (`zero1` is Megatron's distributed optimizer, `zero2` adds gradients, `zero3`
    adds weights: FSDP) and the fraction of the optimizer state that lives in host memory. In a layered plan the shards
    are unequal: every replica says how many of the `parts` each of its copies keeps."""

    sharding: Sharding = "none"
    offload: float = 0.0
    parts: int | None = None

    @property
    def distributed(self) -> bool:
        return self.sharding != "none"


@record
class Overlap:
    """Which communication runs beside computation."""

    grad_reduce: bool = False
    param_gather: bool = False
    tensor_parallel: bool = False
    pipeline: bool = False


@record
class TimeBreakdown:
    """Where the seconds of one iteration go, on the stage that decides it. Communication counts only as far as
    computation does not hide it. `framework_seconds` is what the software itself takes for each pass and each step.
    The fields add up to the iteration."""

    forward_seconds: float
    backward_seconds: float
    recompute_seconds: float
    tensor_parallel_seconds: float
    context_parallel_seconds: float
    expert_parallel_seconds: float
    pipeline_seconds: float
    bubble_seconds: float
    data_parallel_seconds: float
    optimizer_seconds: float
    framework_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        return float(sum(getattr(self, name) for name in self.__dataclass_fields__))


@record
class StageMemory:
    """Peak memory in bytes of one GPU of a stage, term by term, and the GPU's capacity; and what it takes of its
    machine's memory (offloaded or paged state, offloaded activations), of which it has the part
    `host_capacity_bytes`. Older files say nothing of the host."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    buffers_bytes: float
    context_bytes: float
    capacity_bytes: float
    in_host_bytes: float = 0.0
    host_capacity_bytes: float = 0.0

    @property
    def fits_in_host(self) -> bool:
        return self.in_host_bytes <= self.host_capacity_bytes

    @property
    def total_bytes(self) -> float:
        beside = ("capacity_bytes", "in_host_bytes", "host_capacity_bytes")
        return float(sum(getattr(self, name) for name in self.__dataclass_fields__ if name not in beside))


@record
class Evidence:
    """A published run near a prediction: what ran, what it reached (tokens per second of all GPUs) and what was
    predicted for it without having seen it, how far the run is from the plan (`cost.trust.evidence`; 0 the same
    setting, above 2 another world), and where it is published."""

    model: str
    gpus: int
    gpu: str
    framework: str
    strategy: str
    tokens_per_second: float
    predicted_tokens_per_second: float
    distance: float
    source: str

    @property
    def error(self) -> float:
        """Predicted over reached tokens per second, less 1."""
        return self.predicted_tokens_per_second / self.tokens_per_second - 1.0


@record
class Unmeasured:
    """What a plan has and no published run: a fact (`cost.trust.evidence.LACKS`) and of what."""

    fact: str
    of: tuple[str, ...]


@record
class MfuRecord:
    """The highest MFU among `runs` published runs of one class: GPU architecture, precision, kind and size of model."""

    mfu: float
    runs: int
    model: str
    gpus: int
    gpu: str


@record
class Precedents:
    """How far plans like this one were ever measured: published runs of the same kind of model with the same framework
    on the same GPU, how many of them on half to twice as many GPUs, what of the plan no published run has, and the
    record of its class (None: too few are known)."""

    kind: str
    runs: int
    at_scale: int
    lacking: tuple[Unmeasured, ...]
    record: MfuRecord | None


@record
class SiteEffect:
    """What a calibration on a site's own runs did to a prediction: it rests on `runs` of them, `same_kind` of these of
    the same kind and family of models; seconds are `factor` times what they were, and the logarithms of the interval's
    ends `narrower` times as far from them. `unsaid` is why it did nothing, where it did."""

    runs: int
    factor: float
    narrower: float
    same_kind: int
    unsaid: str = ""


@record
class Prediction:
    """What the cost model says of a plan. Money is None where a price is unknown, totals where no tokens are given.

    `memory` has a row for each replica and an entry for each stage. `interval` is the 80 % interval of
    `iteration_seconds`; `fit_probability` the probability that every stage fits its GPU; `evidence` has the nearest
    published runs, `measured` says how like it any is (None in older files, and where layers were measured).
    `ideal_seconds` are those of the model's FLOPs at the peak of all GPUs of the cluster (None in older files),
    `lower_bound_seconds` what a search proved that no plan of its space beats (None where none did).
    `busiest_stage` is the stage that works most, of the replica that takes longest. Totals count failures and
    preemptions. `site` says what a calibration on own runs did (None: none was given); every figure has it in it.
    """

    iteration_seconds: float
    interval: tuple[float, float]
    tokens_per_second: float
    mfu: float
    time: TimeBreakdown
    memory: tuple[tuple[StageMemory, ...], ...]
    fit_probability: float
    dollars_per_hour: float | None
    dollars_total: float | None
    hours_total: float | None
    ideal_seconds: float | None = None
    lower_bound_seconds: float | None = None
    busiest_stage: int = 0
    evidence: tuple[Evidence, ...] = ()
    measured: Precedents | None = None
    site: SiteEffect | None = None


@record(slots=False)
class Plan:
    """A complete parallel strategy for `model` on GPUs of `cluster`, with its prediction once it has been costed."""

    model: Model
    job: Job
    cluster: Cluster
    micro_batch: int
    schedule: Schedule
    replicas: tuple[Replica, ...]
    optimizer: OptimizerPlan
    overlap: Overlap
    sequence_parallel: bool
    flash_attention: bool
    rank_order: RankOrder = "tp-cp-ep-dp-pp"
    label: str = ""
    prediction: Prediction | None = None

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of each kind of replica, in order."""
        return tuple(stage for replica in self.replicas for stage in replica.stages)

    @cached_property
    def gpus(self) -> int:
        return sum(replica.gpus for replica in self.replicas)

    @cached_property
    def gpus_by_type(self) -> Counter[str]:
        """How many GPUs of each type are used, in the order of the cluster; types that are not used are left out."""
        used = Counter({pool.gpu.name: 0 for pool in self.cluster.pools})
        for replica in self.replicas:
            for stage in replica.stages:
                used[stage.gpu] += replica.count * stage.gpus
        return +used

    @cached_property
    def data_parallel(self) -> int:
        return sum(replica.count for replica in self.replicas)

    @cached_property
    def uniform(self) -> bool:
        """Whether all replicas are alike and every stage has the same GPU type and parallel degrees, in a schedule of
        pipelines."""
        stages = {
            (s.gpu, s.tensor_parallel, s.context_parallel, s.expert_parallel, s.expert_tensor_parallel)
            for s in self.stages
        }
        return len(self.replicas) == 1 and len(stages) == 1 and not self.layered

    @cached_property
    def layered(self) -> bool:
        """Whether this is uneven FSDP: whole copies of the model on single GPUs, with shares of rows and of state."""
        return self.schedule.kind == "layered"

    @property
    def predicted(self) -> Prediction:
        """Its prediction, for those who cost plans first."""
        assert self.prediction is not None, "the plan is costed"
        return self.prediction

    @property
    def iteration_seconds(self) -> float:
        """How long an iteration of a costed plan takes."""
        return self.predicted.iteration_seconds

    @property
    def iteration_dollars(self) -> float | None:
        """What an iteration of a costed plan costs, failures and preemptions counted where the run has a length; None
        where a price is not known."""
        prediction = self.prediction
        if prediction is None or prediction.dollars_per_hour is None:
            return None
        if prediction.dollars_total is not None and self.job.iterations is not None:
            return prediction.dollars_total / self.job.iterations
        return prediction.iteration_seconds * prediction.dollars_per_hour / SECONDS_PER_HOUR

    def __repr__(self) -> str:
        used = " + ".join(f"{count} {gpu}" for gpu, count in self.gpus_by_type.items())
        prediction = self.prediction
        time = "not costed" if prediction is None else f"{prediction.iteration_seconds:.4g} s an iteration"
        tensor = {stage.tensor_parallel for stage in self.stages}
        depths = {len(replica.stages) for replica in self.replicas}
        width, deep = ("/".join(map(str, sorted(values))) for values in (tensor, depths))
        degrees = f"tensor {width} × pipeline {deep} × data {self.data_parallel}, micro-batch {self.micro_batch}"
        if self.layered:
            degrees = f"uneven FSDP × {self.data_parallel}"
        return f"<Plan of {self.model.name} on {used}: {degrees}, {time}>"

    def costed(self, prediction: Prediction) -> Plan:
        """Return this plan with `prediction`."""
        return replace(self, prediction=prediction)


def replicas_at(plan: Plan) -> Iterator[tuple[str, Replica]]:
    """Yield the path of each kind of replica, and the replica."""
    for index, replica in enumerate(plan.replicas):
        yield f"replicas[{index}]", replica


def stages_at(plan: Plan) -> Iterator[tuple[str, Replica, Stage]]:
    """Yield the path of each stage, its replica, and the stage."""
    for place, replica in replicas_at(plan):
        for index, stage in enumerate(replica.stages):
            yield f"{place}.stages[{index}]", replica, stage
