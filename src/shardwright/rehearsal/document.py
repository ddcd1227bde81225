"""The result of a rehearsal beside what the account says of its ranks (memory by term, FLOPs, messages), and the same
as a JSON document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.cost.compute.flops import layer_flops_per_token, score_flops_per_token
from shardwright.cost.compute.operators import (
    CORE,
    FLASH_BACKWARD_FLOPS,
    MLP,
    MOE,
    SHARED,
    UP,
    expert_copies,
    per_operator,
    repeats,
)
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.gathers import moved_in_passes, once_a_step
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.sizes import reference_is_unit, summed_bytes, trained_share, weight_bytes
from shardwright.cost.predict import predict
from shardwright.cost.strategies import UNSHARDED, stage_row, strategies
from shardwright.plans.plan import Plan, Recompute, StageMemory
from shardwright.records import record
from shardwright.runtime.layout.groups import Place
from shardwright.spec.adapter import Matrix, adapted, matrices
from shardwright.spec.catalog.frameworks import framework_has
from shardwright.spec.job import Job
from shardwright.spec.layer import Layer
from shardwright.spec.model import Model

VERSION = 1
STATIC = {"parameters": "weights_bytes", "gradients": "gradients_bytes", "state": "optimizer_bytes"}
PASSING = ("activations", "buffers", "temporaries")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
PASSING_TERMS = ("activations_bytes", "logits_bytes", "buffers_bytes")


@record
class RankRehearsal:
    """What the step of one rank took (`figures`, as `inside.meter` and the runner have them), and what was expected."""

    place: Place
    figures: Mapping[str, Any]
    expected: Expected

    @property
    def tensor_bytes(self) -> int:
        """The most bytes that tensors took at a time."""
        return int(self.figures["peak_bytes"])

    @property
    def total_bytes(self) -> float:
        """The same with what the account adds beside tensors: context, work space, rounding and fragmentation."""
        return self.tensor_bytes + self.expected.memory.context_bytes

    @property
    def difference(self) -> float:
        """Expected over rehearsed bytes of tensors, less 1."""
        return self.expected.tensor_bytes / self.tensor_bytes - 1.0

    @property
    def shim_share(self) -> float:
        """The part of the bytes at the peak that shims allocated."""
        return float(sum(shim["bytes"] for shim in self.figures["shims"].values()) / self.tensor_bytes)


@record
class Rehearsal:
    """A plan rehearsed in a trainer, rank by rank."""

    trainer: str
    ranks: tuple[RankRehearsal, ...]

    @property
    def fits(self) -> bool:
        """Whether every rank that was rehearsed stays within its GPU's memory."""
        return all(rank.total_bytes <= rank.expected.memory.capacity_bytes for rank in self.ranks)


def rows(rank: RankRehearsal) -> list[tuple[str, float, float]]:
    """Return what was rehearsed and expected, in bytes: what stays through the step kind by kind, then all that passes
    through it together, which the account divides otherwise, then all. Where a trainer's weights are the fp32 masters,
    these are state in the account, and so they are here."""
    kinds, memory = rank.figures["kinds"], rank.expected.memory
    static = dict(STATIC)
    sizes = {kind: float(kinds[kind]) for kind in static}
    passing = float(sum(kinds[kind] for kind in PASSING))
    terms: tuple[str, ...] = PASSING_TERMS
    if rank.figures.get("masters"):
        static.pop("parameters")
        sizes["state"] += sizes.pop("parameters")
        terms = ("weights_bytes", *terms)
    result = [(kind, sizes[kind], getattr(memory, term)) for kind, term in static.items()]
    result.append(("passing", passing, sum(getattr(memory, term) for term in terms)))
    return [*result, ("tensors", float(rank.tensor_bytes), rank.expected.tensor_bytes)]


def messages(rank: RankRehearsal) -> list[dict[str, Any]]:
    """Return the messages of a rank, with the bytes that were expected where the account has them."""
    known = rank.expected.message_bytes
    return [
        message | {"expected_bytes": known.get((message["type"], message["purpose"]))}
        for message in rank.figures["messages"]
    ]


def to_document(rehearsal: Rehearsal) -> dict[str, Any]:
    return {
        "version": VERSION,
        "trainer": rehearsal.trainer,
        "fits": rehearsal.fits,
        "ranks": [_rank_document(rank) for rank in rehearsal.ranks],
    }


def _rank_document(rank: RankRehearsal) -> dict[str, Any]:
    figures, memory = rank.figures, rank.expected.memory
    return {
        "rank": rank.place.rank,
        "gpu": rank.place.gpu,
        "replica": rank.place.replica,
        "stage": rank.place.stage,
        "tensor_bytes": rank.tensor_bytes,
        "expected_tensor_bytes": rank.expected.tensor_bytes,
        "beside_tensors_bytes": memory.context_bytes,
        "total_bytes": rank.total_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "memory": [{"kind": kind, "bytes": size, "expected_bytes": other} for kind, size, other in rows(rank)],
        "kinds": dict(figures["kinds"]),
        "phases": figures["phases"],
        "course": figures["course"],
        "largest": figures["largest"],
        "rounding_bytes": figures["rounding_bytes"],
        "flops": figures["flops"],
        "expected_flops": rank.expected.flops,
        "flops_by_operator": figures["flops_by_operator"],
        "messages": messages(rank),
        "shims": [{"name": name, **shim} for name, shim in figures["shims"].items()],
        "shim_share": rank.shim_share,
        "choices": figures["choices"],
        "layer": figures["layer"],
        "operators": figures["operators"],
        "guessed_numbers": figures["guessed_numbers"],
        "seconds": figures["seconds"],
        "host_bytes": figures["host_bytes"],
    }


@record
class Expected:
    """Bytes of a rank's memory by term, FLOPs that it computes in a step, and bytes that it sends or takes by (type,
    purpose), where the account has a figure."""

    memory: StageMemory
    flops: float
    message_bytes: dict[tuple[str, str], float]

    @property
    def tensor_bytes(self) -> float:
        """What PyTorch counts as allocated: all but the context and fragmentation."""
        return self.memory.total_bytes - self.memory.context_bytes


def memory_of(plan: Plan) -> tuple[tuple[StageMemory, ...], ...]:
    """Return the memory of every stage of every replica, as the plan file has it, else predicted."""
    return (plan.prediction or predict(plan, default_efficiency())).memory


def expected(plan: Plan, place: Place, memory: tuple[tuple[StageMemory, ...], ...]) -> Expected:
    stage = memory[place.replica][place.stage]
    return Expected(memory=stage, flops=_flops(plan, place), message_bytes=_messages(plan, place, stage))


def _flops(plan: Plan, place: Place) -> float:
    """Return the FLOPs of the products and scores of a rank's passes, with what it computes again. A backward pass has
    twice the products of a forward pass, once those with frozen weights, and 2.5 times the scores
    (`FLASH_BACKWARD_FLOPS`). Adapters have all of their own, and those of DoRA the lengths of rows in each pass."""
    model, job = plan.model, plan.job
    passes = 2.0 if job.adapters else 3.0
    tokens = sum(place.sizes) * job.sample_tokens / place.context_parallel
    alone = job.passes_without_gradients
    recompute = plan.replicas[place.replica].stages[place.stage].recompute
    total, lengths = 0.0, 0.0
    for units in place.chunks:
        layers = [unit for unit in units if 0 < unit <= len(model.layers)]
        again = len(layers) if recompute.granularity == "full" else 0
        if recompute.granularity == "full" and recompute.method == "block":
            again = min(recompute.layers or 0, len(layers))
        flows = 0 not in units or (again > 0 and framework_has(job.framework, "transformers"))
        for number, unit in enumerate(layers):
            layer = model.layers[unit - 1]
            beyond = _beyond_routed(plan, place, layer)
            every, scores = _forward(model, layer, job, beyond)
            total += (passes + alone) * every + (1.0 + FLASH_BACKWARD_FLOPS - passes) * scores
            if job.adapter is not None:
                beside = adapted(model, layer, job.adapter)
                whole = 1 if plan.sequence_parallel else place.tensor_parallel
                products = (
                    6.0 + 2.0 * (number < again) + 2.0 * (job.preference.policy_passes if job.preference else 0.0)
                )
                total += products * job.adapter.rank * sum(_low_rank(matrix, whole) for matrix in beside)
                lengths += (1.0 + (number < again)) * _lengths_flops(beside, job, place.tensor_parallel)
                # Where layers run again, what enters the first has a gradient, too
                # (transformers/modeling_utils.py 5.24: enable_input_require_grads).
                if not flows:
                    repeated = scores * (recompute.granularity == "selective" and bool(repeats(job) & CORE))
                    total -= _before_adapters(layer, model.hidden, beside, job.adapter.rank, every, scores, repeated)
                flows = flows or bool(beside)
            total += every - _not_again(layer, job, model.hidden) if number < again else 0.0
            if recompute.granularity == "selective":
                operators = per_operator(job)
                total += _every_second(layer, model.hidden) if operators else _of_modules(model, layer, job, scores)
                total += beyond * bool(repeats(job) & MOE)
        if len(model.layers) + 1 in units:
            head = passes + alone + (job.loss == "tiled")
            total += head * 2.0 * model.hidden * model.head_outputs * (1 + model.mtp_layers)
            beyond = _beyond_routed(plan, place, model.layers[-1])
            total += model.mtp_layers * _of_prediction(model, job, recompute, beyond)
    return total * tokens / place.tensor_parallel + lengths * len(place.sizes)


def _forward(model: Model, layer: Layer, job: Job, beyond: float) -> tuple[float, float]:
    """Return the FLOPs a token of a layer's forward pass, with its router and what experts compute `beyond` the rows
    that it is routed to; and those of its scores among them."""
    scores = score_flops_per_token(layer.attention, job.attended_tokens) if layer.attention else 0.0
    router = 2.0 * model.hidden * layer.moe.experts if layer.moe else 0.0
    return layer_flops_per_token(model, layer, job.attended_tokens) + router + beyond, scores


def _low_rank(matrix: Matrix, whole: int) -> float:
    """Return the inputs and outputs that an adapter's products have together, `whole` times those that tensor-parallel
    ranks do not split, each of which computes all positions unless sequence parallelism splits these."""
    inputs, outputs = (whole if matrix.split != side else 1 for side in ("inputs", "outputs"))
    return float(inputs * matrix.inputs + outputs * matrix.outputs)


def _lengths_flops(beside: Sequence[Matrix], job: Job, tensor_parallel: int) -> float:
    """Return the FLOPs of a pass in which DoRA finds the lengths of rows, whatever its tokens: of B times A, in PEFT of
    A times an identity of its inputs, too (`cost.compute.operators`)."""
    if job.adapter is None or not job.adapter.dora:
        return 0.0
    twice = framework_has(job.framework, "transformers")
    return sum(
        2.0 * job.adapter.rank * matrix.copies * matrix.inputs * (matrix.outputs + twice * matrix.inputs)
        / (tensor_parallel if matrix.split else 1)
        for matrix in beside
    )  # fmt: skip


def _beyond_routed(plan: Plan, place: Place, layer: Layer) -> float:
    """Return the FLOPs a token of what experts compute beyond the rows that it is routed to, below 0 where they drop
    some."""
    moe = layer.moe
    if moe is None:
        return 0.0
    size = plan.micro_batch * plan.job.sample_tokens / place.context_parallel
    size /= place.tensor_parallel if plan.sequence_parallel else 1
    (copies,) = expert_copies(moe, np.array([size]), np.ones(1), plan.job)
    return 2.0 * moe.matrices * (moe.latent or plan.model.hidden) * (float(copies) - moe.top_k) * moe.expert_width


def _not_again(layer: Layer, job: Job, hidden: int) -> float:
    """Return the FLOPs a token of the last product of a layer, which PyTorch does not run again: it stops once the last
    tensor that is needed is there (torch/utils/checkpoint.py 2.13: `early_stop`). An adapter beside it needs more, and
    a product of `train` with 4-bit weights keeps these (runtime/model/nf4.py: `_Linear`)."""
    needs = job.nf4_blocks or (job.adapter is not None and "down_proj" in job.adapter.targets)
    stops = framework_has(job.framework, "stops_early") and layer.mlp is not None and not needs
    return 2.0 * hidden * layer.mlp.width if stops and layer.mlp is not None else 0.0


def _of_prediction(model: Model, job: Job, recompute: Recompute, beyond: float) -> float:
    """Return the FLOPs a token of a layer of multi-token prediction, which runs again where all layers do
    (Megatron-LM core_v0.19.2: transformer/multi_token_prediction.py, `_checkpointed_forward`)."""
    layer = model.layers[-1]
    every, scores = _forward(model, layer, job, beyond)
    every += 4.0 * model.hidden * model.hidden
    again = every if recompute.method == "uniform" else 0.0
    if recompute.granularity == "selective":
        again = _of_modules(model, layer, job, scores) + beyond * bool(repeats(job) & MOE)
    return 3.0 * every + (FLASH_BACKWARD_FLOPS - 2.0) * scores + again


def _of_modules(model: Model, layer: Layer, job: Job, scores: float) -> float:
    """Return the FLOPs a token of the modules that run again."""
    modules = repeats(job)
    total = scores * bool(modules & CORE)
    if layer.moe is not None:
        total += 2.0 * model.hidden * layer.moe.experts * bool(modules & MOE)
    for matrix in matrices(model, layer):
        asked, times = 0, matrix.copies
        if layer.moe is not None and matrix.target == "experts":
            asked, times = MOE, layer.moe.top_k
        elif matrix.target in FEED_FORWARD:
            asked = MLP if layer.mlp else MOE | SHARED
        elif layer.latent is not None and matrix.split == "outputs":
            asked = UP
        total += 2.0 * matrix.inputs * matrix.outputs * times * bool(modules & asked)
    return total


def _every_second(layer: Layer, hidden: int) -> float:
    """Return the FLOPs a token of the products that a policy by operators repeats: every second of queries, keys and
    values in one, output, gate, up and down (torchtitan 0.3, distributed/activation_checkpoint.py: SelectiveAC)."""
    attention, mlp = layer.attention, layer.mlp
    output = attention.out_width if attention is not None else 0
    return 2.0 * hidden * (output + (mlp.width if mlp is not None and mlp.gated else 0))


def _before_adapters(
    layer: Layer, hidden: int, beside: Sequence[Matrix], rank: int, every: float, scores: float, repeated: float
) -> float:
    """Return the FLOPs a token of gradients that a layer after a frozen embedding does not compute: of what comes
    before its first adapters, and into that; of all where it has none. Nor are scores `repeated` there."""
    backward = FLASH_BACKWARD_FLOPS * scores + repeated
    if not beside:
        return every - scores + backward
    attention, mlp = layer.attention, layer.mlp
    if attention is None or attention.latent is not None:
        return 0.0

    def into(*targets: str) -> float:
        return 2.0 * rank * sum(matrix.inputs for matrix in beside if matrix.target in targets)

    total = 2.0 * hidden * (attention.query_width + attention.key_width + attention.value_width)
    targets = {matrix.target for matrix in beside}
    if targets & {"q_proj", "k_proj", "v_proj"} or mlp is None:
        return total + into("q_proj", "k_proj", "v_proj")
    total += backward + 2.0 * hidden * attention.out_width
    if "o_proj" in targets:
        return total + into("o_proj")
    total += 2.0 * hidden * mlp.width * (2.0 if mlp.gated else 1.0)
    if targets & {"gate_proj", "up_proj"}:
        return total + into("gate_proj", "up_proj")
    return total + 2.0 * hidden * mlp.width + into("down_proj")


def _messages(plan: Plan, place: Place, memory: StageMemory) -> dict[tuple[str, str], float]:
    """Return bytes by type and purpose of what the account knows by its size: weights, gradients, and activations
    between stages."""
    job, result, widths = plan.job, dict[tuple[str, str], float](), widths_of(plan.job)
    if plan.data_parallel > 1:
        gathered, summed = _data_parallel_parameters(plan, place, memory)
        if plan.optimizer.distributed:
            result["all-gather", "gradient"] = weight_bytes(job) * gathered
            result["reduce-scatter", "gradient"] = widths.gradient_reduction * summed
        else:
            result["all-reduce", "gradient"] = float(summed_bytes(job, UNSHARDED)) * summed / 2.0
    if place.depth > 1:
        split = place.context_parallel * (place.tensor_parallel if plan.sequence_parallel else 1)
        message = widths.saved * job.sample_tokens / split * plan.model.hidden * sum(place.sizes)
        inner = len(place.chunks)
        before = inner - (1 if place.stage == 0 else 0)
        after = inner - (1 if place.stage == place.depth - 1 else 0)
        for kind in ("send", "receive"):  # activations one way, gradients the other
            result[kind, "stages"] = message * (before + after)
    return result


def _data_parallel_parameters(plan: Plan, place: Place, memory: StageMemory) -> tuple[float, float]:
    """Return the parameters that a rank gathers and of which it sums gradients in a step; summed and spread again
    counts twice."""
    model, job, replica = plan.model, plan.job, plan.replicas[place.replica]
    row = strategies([stage_row(plan, replica, replica.stages[place.stage])])
    held = _held(plan, place, memory)
    alone = model.tied_embeddings and place.depth == 1
    tied = model.token_table_parameters / place.tensor_parallel if alone else 0.0
    first, last = place.stage == 0, place.stage == place.depth - 1
    embedding = model.embedding_parameters / place.tensor_parallel if first else 0.0
    head = model.head_parameters / place.tensor_parallel + tied if last else 0.0
    parts = (np.array([[part]]) for part in (held + tied, embedding, head, tied))
    moved, (sums, gathers) = moved_in_passes(job, row, *parts), once_a_step(job, row)
    times = (plan.schedule.waves or 1) if plan.layered else place.micro_batches
    trained = trained_share(model, job)
    beside = held * trained * job.adapters * ((moved.forward > 0.0).astype(int) + (moved.backward > 0.0))[0, 0]
    passing = float((moved.forward + moved.backward)[0, 0] + beside) + _gathered_alone(plan, float(moved.forward[0, 0]))
    gathered = times * passing + trained * held * float(gathers[0])
    return gathered, trained * (times * float(moved.summed[0, 0]) + held * float(sums[0]))


def _gathered_alone(plan: Plan, forward: float) -> float:
    """Return the parameters that passes of a micro-batch without gradients gather, where one with them gathers
    `forward`: a reference that is one unit is whole from the first step on unless ZeRO-3 shards it."""
    job, preference = plan.job, plan.job.preference
    if preference is None:
        return 0.0
    whole = plan.model.parameters * (plan.optimizer.sharding == "zero3") if reference_is_unit(job) else forward
    return preference.policy_passes * forward + preference.reference_passes * whole


def _held(plan: Plan, place: Place, memory: StageMemory) -> float:
    """Return the parameters of a rank before they are sharded over data-parallel ranks."""
    quantised = plan.job.adapter is not None and plan.job.adapter.quantised
    if plan.optimizer.sharding not in ("zero2", "zero3") and not quantised:
        return memory.weights_bytes / weight_bytes(plan.job)
    return plan.model.parameters / place.tensor_parallel / place.depth
