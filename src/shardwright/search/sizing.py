"""Ways to train a model on some GPUs, and the memory that each takes of one GPU: what fits, and what would.

All terms are those of the cost model (`cost.memory`). LoRA freezes the weights and trains adapters beside them, QLoRA
keeps the frozen ones of layers in four bits, 8-bit LoRA in eight (`spec.adapter`). On GPUs of several types each takes
as much, and the one with the least memory decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from math import gcd
from typing import Any

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.compute.efficiency import Analytic, computes, peak_flops
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.footprint import Footprint, footprint
from shardwright.cost.iteration.moments import fixed_bytes
from shardwright.cost.memory.facts import fit_probability, headroom, memory_facts
from shardwright.cost.strategies import NONE, SHARDING, UNIFORM, boundaries, settled, strategies
from shardwright.errors import bad, reject
from shardwright.plans.abilities import fused_attention_runs
from shardwright.plans.check import batch_problems, position_problems
from shardwright.plans.plan import Sharding
from shardwright.plans.plan import StageMemory as Memory
from shardwright.plans.trainer_options import option_problems
from shardwright.records import record
from shardwright.spec.adapter import Adapter
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.options import Options
from shardwright.units import format_bytes

SURE = 0.9  # the probability with which something is said to fit
HOPELESS = 0.1  # that with which it is said not to
MOST_GPUS = 1024  # that are tried for sharding
MOST_SAMPLES = 1024  # that are tried as a micro-batch
SHORTEST = 256  # tokens; sequences are tried in steps of it, or of a part of it of which a model's limit is a multiple
LONGEST = 1 << 20  # tokens that are tried where a model says no longest sequence
TRIED = 32  # sizes that are costed at once
LIGHTER: tuple[dict[str, Any], ...] = (  # options that are tried where a way does not fit
    {"loss": "chunked"}, {"activation_offload": "inputs"}, {"loss": "chunked", "activation_offload": "inputs"},
    {"master_weights": "none"}, {"loss": "chunked", "master_weights": "none"}, {"weight_offload": "host"},
)  # fmt: skip


@record
class TrainingWay:
    """A way to train. `offload` is the part of the optimizer state in host memory; with sharding "zero1" and "zero3"
    GPUs share the state, with "zero3" gradients and weights too. All but plain training and plain adapters recompute
    activations."""

    name: str
    adapter: Adapter | None = None
    sharding: Sharding = "none"
    offload: float = 0.0
    recompute: bool = True

    @property
    def quantised(self) -> bool:
        """Whether frozen weights have four bits."""
        return self.adapter is not None and self.adapter.frozen == "nf4"

    @property
    def training(self) -> str:
        """What is trained, in one word: full, or the form of the adapters."""
        return "full" if self.adapter is None else self.adapter.form

    def of(self, job: Job) -> Job:
        """Return a job trained so. Frozen weights have no masters, whatever those that are trained have."""
        options = job.options if self.adapter is None else replace(job.options, master_weights=None)
        return replace(job, adapter=self.adapter, options=options)


@record
class Size:
    """The memory of one GPU under a way, in bytes, the probability that it fits, whether a GPU has room, whatever the
    host has, the bytes that it takes of its share of the host's memory, and how far that goes: the longest
    sequence, one at a time on each GPU, the largest micro-batch of the sequences asked for, the fewest GPUs, and where
    it does not fit the options of the trainer with which it would, and the smallest GPU of the catalogue with room for
    it (None: none has, or this one, and host memory is what it lacks)."""

    way: TrainingWay
    memory: Memory
    fit_probability: float
    has_room: bool
    host_bytes: float
    longest_sequence: int | None = None
    largest_micro_batch: int | None = None
    fewest_gpus: int | None = None
    smallest_gpu: str | None = None
    options: Options | None = None

    @property
    def fits(self) -> bool:
        return self.fit_probability >= SURE

    @property
    def may_fit(self) -> bool:
        """Whether some runs of it may fit and others not."""
        return HOPELESS < self.fit_probability < SURE


@record
class Sizing:
    """The ways to train `model` on the GPUs of `cluster`, so many sequences at a time on each. `pool` is that of the
    GPU with the least memory. `lacking` are ways that no trainer of the framework has, `without_adapters` says why,
    and how to mend it, where none with adapters is left."""

    model: Model
    cluster: Cluster
    pool: NodePool
    job: Job
    sizes: tuple[Size, ...]
    lacking: tuple[TrainingWay, ...] = ()
    without_adapters: str = ""

    @property
    def types(self) -> str:
        """How many GPUs of each type there are."""
        return " + ".join(f"{pool.gpus} {pool.gpu.name}" for pool in self.cluster.pools)

    @property
    def first(self) -> Size | None:
        """The first way that fits, in the order of `ways`."""
        return next((size for size in self.sizes if size.fits), None)

    @property
    def too_large_to_load(self) -> float | None:
        """The bytes of weights in four bits, where a GPU has not so many: all come onto each GPU before they are
        sharded unless the CPU loads them (transformers/quantizers/quantizer_bnb_4bit.py 5.24: `update_device_map`)."""
        whole = [size.memory.weights_bytes for size in self.sizes if size.way.quantised and size.way.sharding == "none"]
        return next((size for size in whole if size > self.pool.memory_bytes), None)

    def __repr__(self) -> str:
        rows = (
            f"{size.way.name}: {format_bytes(size.memory.total_bytes)} of {format_bytes(size.memory.capacity_bytes)}, "
            f"fits with probability {size.fit_probability:.0%}"
            for size in self.sizes
        )
        return "\n".join((f"{self.model.name} on {self.types}", *rows))


def ways(count: int, job: Job) -> tuple[TrainingWay, ...]:
    """Return the ways to train on `count` GPUs, plain ones first. The job's adapter has the rank and the targets of
    all adapters, of which the state alone is next to nothing: it goes to the host where weights do, too. One GPU shares
    nothing, and shards for what that moves to its host memory."""
    facts = memory_facts(job.framework)
    return tuple(
        way
        for way in _every_way(replace(job.adapter or Adapter(), frozen="16-bit"), _everything_sharded(job))
        if (facts.weights_follow or way.adapter is None or not way.offload)
        and (count > 1 or way.sharding == "none" or _shards_alone(way, job))
    )


def _shards_alone(way: TrainingWay, job: Job) -> bool:
    """Return whether sharding on one GPU moves anything to host memory that is not there without."""
    if way.sharding == "zero1":
        return way.offload > 0.0
    return job.options.weights_in_host or (way.offload > 0.0 and memory_facts(job.framework).gradients_follow)


def _everything_sharded(job: Job) -> str:
    """Return what the job's framework calls sharding of state, gradients and weights."""
    return "ZeRO-3" if job.framework == "deepspeed" else "ZeRO-3 (FSDP)"


def _every_way(plain: Adapter, sharded: str) -> tuple[TrainingWay, ...]:
    nf4, int8 = replace(plain, frozen="nf4"), replace(plain, frozen="int8")
    lora, qlora = ("DoRA", "QDoRA") if plain.dora else ("LoRA", "QLoRA")
    shared = (
        TrainingWay(name="ZeRO-1", sharding="zero1"),
        TrainingWay(name=sharded, sharding="zero3"),
        TrainingWay(name="ZeRO-3, optimizer in host memory", sharding="zero3", offload=1.0),
    )
    shared_adapters = (
        TrainingWay(name=f"{lora}, {sharded}", adapter=plain, sharding="zero3"),
        TrainingWay(name=f"{qlora}, {sharded}", adapter=nf4, sharding="zero3"),
        TrainingWay(name=f"{lora}, ZeRO-3, weights on host", adapter=plain, sharding="zero3", offload=1.0),
        TrainingWay(name=f"{qlora}, ZeRO-3, weights on host", adapter=nf4, sharding="zero3", offload=1.0),
    )
    return (
        TrainingWay(name="full", recompute=False),
        TrainingWay(name="full, recomputation"),
        *shared,
        TrainingWay(name="full, optimizer in host memory", sharding="zero1", offload=1.0),
        TrainingWay(name=lora, adapter=plain, recompute=False),
        TrainingWay(name=f"{lora}, recomputation", adapter=plain),
        *(() if plain.dora else (TrainingWay(name="LoRA, 8-bit weights", adapter=int8),)),
        TrainingWay(name=qlora, adapter=nf4),
        *shared_adapters,
    )


def fit(model: Model, cluster: Cluster, job: Job) -> Sizing:
    """Return the memory that training takes on the GPUs of `cluster`, for each way to train.

    `job` has the sequence length; its global batch counts the sequences that each GPU takes at a time, times the GPUs;
    its adapter, if it has one, is that of the ways with adapters. Raises SpecError for a batch that the GPUs do not
    divide, and for what a GPU cannot compute.
    """
    if job.global_batch % cluster.gpus:
        raise bad("`global_batch=`", f"{cluster.gpus} GPUs do not divide {job.global_batch}", "give a multiple")
    samples = job.global_batch // cluster.gpus
    reject([*position_problems(model, job), *option_problems(model, job), *batch_problems(job, samples, "micro_batch")])
    for pool in cluster.pools:
        peak_flops(pool.gpu, job.precision)
    least = min(cluster.pools, key=lambda pool: pool.memory_bytes)
    host = min(pool.host_memory_bytes_per_gpu for pool in cluster.pools)
    account = _Account(model, replace(least, host_memory_bytes=host * least.gpus_per_node), cluster.gpus)
    described = model.tower is None or model.tower.input == "image"  # of encoder-decoders no adapters are
    tried = [way for way in ways(cluster.gpus, job) if described or way.adapter is None]
    if job.projection_rank is not None:  # of whole matrices
        tried = [way for way in tried if way.sharding == "none" and way.adapter is None]
    sizes = tuple(_sized(account, way, job, samples) for way in tried)
    return Sizing(model=model, cluster=cluster, pool=least, job=job, sizes=sizes)


@record(kw_only=False)
class _Account:
    """The memory of data-parallel plans of a model on `count` GPUs of a pool."""

    model: Model
    pool: NodePool
    count: int

    def memory(self, way: TrainingWay, job: Job, samples: Ints, count: Ints) -> list[Memory]:
        """Return what GPUs take with micro-batches of `samples` [N] on `count` GPUs [N]."""
        job = replace(way.of(job), global_batch=int((samples * count).max()))
        context = Context(model=self.model, pool=self.pool, job=job, efficiency=Analytic())
        layers = len(self.model.layers)
        fixed = {
            "flash": fused_attention_runs(self.pool.gpu, job.precision),
            "sharding": SHARDING.index(way.sharding),
            "offload": way.offload,
            "recompute": UNIFORM if way.recompute else NONE,
            "recompute_layers": 1 if way.recompute else 0,
            "first_layers": layers,
            "last_layers": layers,
        }
        alone = {"sharding": fixed["sharding"]} if job.options.weights_in_host else {}
        sizes = zip(samples.tolist(), count.tolist(), strict=True)
        rows = strategies([{**settled({**fixed, "micro_batch": size, "dp": gpus}), **alone} for size, gpus in sizes])
        starts = boundaries(layers, 1, rows.first_layers, rows.last_layers)
        shards, single = layer_rows(context, rows), np.ones(len(rows), dtype=np.int64)
        terms = footprint(context, rows, shards, starts, fixed_bytes(context, rows, shards, starts, single))
        names = [term.name for term in fields(Footprint)]
        columns = np.stack([np.broadcast_to(getattr(terms, name), (len(rows), 1))[:, 0] for name in names], axis=1)
        rooms = {
            "capacity_bytes": self.pool.memory_bytes,
            "host_capacity_bytes": self.pool.host_memory_bytes_per_gpu,
        }
        return [
            Memory(**rooms, **{f"{name}_bytes": value for name, value in zip(names, row, strict=True)})
            for row in columns.tolist()
        ]

    def fit(self, way: TrainingWay, job: Job, samples: Ints, count: Ints) -> Floats:
        """Return the probability that each fits, [N]."""
        return np.array([self.probability(memory, job) for memory in self.memory(way, job, samples, count)])

    def probability(self, memory: Memory, job: Job) -> float:
        """Return the probability that a GPU and its share of the host have room."""
        return fit_probability(memory.total_bytes, memory.capacity_bytes, job) if memory.fits_in_host else 0.0


def _sized(account: _Account, way: TrainingWay, job: Job, samples: int) -> Size:
    """Return the size of a way, and how far it goes."""
    ones, here = np.ones(1, dtype=np.int64), np.full(1, account.count)
    (memory,) = account.memory(way, job, samples * ones, here)
    size = Size(
        way=way,
        memory=memory,
        fit_probability=account.probability(memory, job),
        has_room=fit_probability(memory.total_bytes, memory.capacity_bytes, job) >= SURE,
        host_bytes=memory.in_host_bytes,
    )

    def samples_fit(sizes: Ints) -> Floats:
        return account.fit(way, job, sizes, np.full(len(sizes), account.count))

    def count_fits(counts: Ints) -> Floats:
        return account.fit(way, job, np.full(len(counts), samples), counts)

    shared = way.sharding != "none"
    return replace(
        size,
        longest_sequence=_longest_sequence(account, way, job),
        largest_micro_batch=_last(1, MOST_SAMPLES, samples_fit),
        fewest_gpus=_first(1, MOST_GPUS, count_fits) if shared else 1 if size.fits else None,
        smallest_gpu=None if size.has_room else _smallest_gpu(memory, job),
        options=None if size.fits else _lighter_options(account, way, job, samples),
    )


def way_with(way: TrainingWay, options: Options, count: int) -> TrainingWay:
    """Return a way under other options: one GPU shards its weights where they are in host memory."""
    return replace(way, sharding="zero3") if options.weights_in_host and count == 1 else way


def _lighter_options(account: _Account, way: TrainingWay, job: Job, samples: int) -> Options | None:
    """Return the fewest options of the trainer beside the job's with which a way fits, if there are some."""
    ones, here = np.ones(1, dtype=np.int64), np.full(1, account.count)
    for options in (replace(job.options, **lighter) for lighter in LIGHTER):
        lighter, lighter_way = replace(job, options=options), way_with(way, options, account.count)
        runs = way.of(lighter) != way.of(job) and not any(option_problems(account.model, way.of(lighter)))
        if runs and account.fit(lighter_way, lighter, samples * ones, here)[0] >= SURE:
            return options
    return None


def _longest_sequence(account: _Account, way: TrainingWay, job: Job) -> int | None:
    """Return the longest sequence that fits, one at a time on each GPU, up to what the model was made for, or
    `LONGEST` where that is unknown or longer ones are asked for. Where attention is fused, memory depends on the tokens
    alone: sequences are sized as so many short ones, but of a model with a tower, which has as many images in a long
    one."""
    made_for = account.model.max_position
    limit = made_for if made_for >= job.seq_len else LONGEST
    step = gcd(limit, SHORTEST)
    plain = job.document_tokens is None and not account.model.towers
    fused = plain and fused_attention_runs(account.pool.gpu, job.precision)

    def tokens_fit(steps: Ints) -> Floats:
        if fused:
            return account.fit(way, replace(job, seq_len=step), steps, np.full(len(steps), account.count))
        ones, here = np.ones(1, dtype=np.int64), np.full(1, account.count)
        lengths = (replace(job, seq_len=step * int(number)) for number in steps)
        return np.concatenate([account.fit(way, length, ones, here) for length in lengths])

    longest = _last(1, limit // step, tokens_fit, at_once=TRIED if fused else 1)
    return None if longest is None else longest * step


def _last(low: int, high: int, fits: Callable[[Ints], Floats], at_once: int = TRIED) -> int | None:
    """Return the last whole number from `low` to `high` that fits, where all after it do not; None where none does."""
    if fits(np.array([low]))[0] < SURE:
        return None
    while low < high:
        tried = _between(low + 1, high, at_once)
        sure = np.flatnonzero(fits(tried) >= SURE)
        after = int(sure[-1]) + 1 if len(sure) else 0
        low = int(tried[after - 1]) if after else low
        high = int(tried[after]) - 1 if after < len(tried) else high
    return low


def _first(low: int, high: int, fits: Callable[[Ints], Floats]) -> int | None:
    """Return the first that fits, where all after it do; None where none does."""
    if fits(np.array([high]))[0] < SURE:
        return None
    last = _last(low, high, lambda tried: np.where(fits(tried) >= SURE, 0.0, 1.0))
    return low if last is None else last + 1


def _between(low: int, high: int, count: int) -> Ints:
    """Return up to `count` whole numbers from `low` to `high`, close ones near `low`; the middle one of one."""
    if count == 1:
        return np.array([(low + high + 1) // 2], dtype=np.int64)
    return np.unique(np.round(np.geomspace(low, high, count)).astype(np.int64))


def _smallest_gpu(memory: Memory, job: Job) -> str | None:
    """Return the GPU of the catalogue with the least memory that has room."""
    able = [gpu for gpu in gpus().values() if computes(gpu, job.precision)]
    roomy = [gpu for gpu in able if memory.total_bytes <= headroom(SURE, job) * gpu.memory_bytes]
    return min(roomy, key=lambda gpu: (gpu.memory_bytes, gpu.name)).name if roomy else None
