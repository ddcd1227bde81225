"""The causes of slow runs that are known: a function and a row of `CAUSES` each. A function looks at a case and returns
what it finds there: seconds of a step that the cause takes, what mending it saves, and the evidence.

Three kinds of evidence. *Measured*: a trace, a log or the run itself shows the seconds. *Priced*: the plan is slow by
the cost model, which prices it with that one thing changed. *Possible*: a step takes longer than it should, and with
this cause it would take about that long, but nothing that was recorded tells it from others.

A new cause is a function here, a row of `CAUSES`, and its words in `data/causes.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.strategies import (
    BLOCK,
    NONE,
    SELECTIVE,
    UNSHARDED,
    ZERO1,
    ZERO2,
    Row,
    row_of,
    strategies,
    values_of,
)
from shardwright.diagnosis.case import Case, median
from shardwright.diagnosis.terms import (
    CONTEXT,
    EXPERT,
    GRADIENTS,
    HOST,
    PIPELINE,
    TALK,
    TENSOR,
    changed,
    explaining_links,
    terms,
    with_job,
)
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.search.space.axes import Space, virtual_stages
from shardwright.search.space.layouts import even_split
from shardwright.spec.catalog.frameworks import framework_options
from shardwright.spec.job import Precision
from shardwright.units import format_seconds

Basis = Literal["measured", "priced", "possible"]
WORTH = 0.03  # of a step, from which on a cause is worth a word; chosen, 0.02 to 0.05
SLOWER_RANK = 1.08  # over the others, from which on a rank is slow; chosen, 1.05 to 1.15
IRREGULAR = 0.12  # from which on a rank's slowness comes and goes; chosen, 0.08 to 0.2
MORE_TALK = 1.3  # over what is expected, from which on communication is slow; chosen, 1.2 to 1.5
MORE_SAMPLES = 8  # times the global batch, where no other change fills a pipeline
NEAR = 0.15  # log distance of what a cause explains to what was measured; chosen, 0.1 to 0.25


@record
class Finding:
    """A cause in a case: the seconds of a step that it takes, which are those that mending it saves, and the evidence
    in words. `plan` is the plan that mends it, where the plan is the cause; `detail` tells kinds of a cause apart."""

    cause: str
    basis: Basis
    seconds: float
    evidence: tuple[str, ...]
    plan: Plan | None = None
    detail: str = ""


def stalls(case: Case) -> Iterator[Finding]:
    """Steps that stand still: checkpoints, evaluations, and what no line of the log explains."""
    total = sum(seconds for _, seconds in case.stall_seconds)
    if total >= 0.5 * WORTH * _step(case):
        reasons = [f"{reason}: {format_seconds(value)} of an average step" for reason, value in case.stall_seconds]
        longest = max(case.stall_seconds, key=lambda pair: pair[1])[0]
        yield _measured("stalls", total, *reasons, detail=longest)


def data_loading(case: Case) -> Iterator[Finding]:
    """The step waits for its samples."""
    rank, signs = case.critical, _signs(case, "data-loading")
    seconds = rank.data_seconds if rank is not None else 0.0
    if rank is not None and seconds >= WORTH * _step(case):
        yield _measured(
            "data-loading", seconds, f"rank {rank.rank} waits {format_seconds(seconds)} a step for samples", *signs
        )
    elif signs and rank is None:
        yield Finding(cause="data-loading", basis="possible", seconds=0.0, evidence=signs)


def slow_rank(case: Case) -> Iterator[Finding]:
    """A rank computes longer than others with the same work, and all wait for it."""
    if len(case.ranks) < 2:
        return
    expected = {rank.rank: case.expected_compute(rank.rank) or 1.0 for rank in case.ranks}
    ratios = {rank.rank: (rank.compute_seconds - rank.optimizer_seconds) / expected[rank.rank] for rank in case.ranks}
    slowest = max(ratios, key=lambda rank: (ratios[rank], -rank))
    usual = median([ratio for rank, ratio in ratios.items() if rank != slowest])
    seconds = (ratios[slowest] - usual) * expected[slowest]
    if usual <= 0.0 or ratios[slowest] < SLOWER_RANK * usual or seconds < WORTH * _step(case):
        return
    rank = next(row for row in case.ranks if row.rank == slowest)
    words = (
        f"rank {slowest} computes {format_seconds(rank.compute_seconds - rank.optimizer_seconds)} a step, "
        f"{ratios[slowest] / usual - 1.0:.0%} longer than others with its work would"
    )
    comes = rank.irregularity is not None and rank.irregularity > IRREGULAR
    more = (
        f"its slow passes come and go (the slowest tenth is {rank.irregularity:.0%} above the median)" if comes else ""
    )
    yield _measured("slow-rank", seconds, words, *([more] if more else []), detail="irregular" if comes else "steady")


def slow_network(case: Case) -> Iterator[Finding]:
    """Communication takes longer than the links that were described would take."""
    signs = _signs(case, "slow-network")
    step = case.step_seconds
    talking = [term for term in terms(case) if term.name in (TENSOR, CONTEXT, EXPERT, PIPELINE, GRADIENTS, TALK)]
    # Together: a rank whose passes end early waits for the others either in its pipeline or in the sums behind it.
    seconds = sum(term.excess_seconds or 0.0 for term in talking)
    expected = sum(term.expected_seconds for term in talking)
    slow = []
    if seconds >= max(WORTH * _step(case), (MORE_TALK - 1.0) * expected):
        slow = [term for term in talking if (term.excess_seconds or 0.0) > 0.1 * seconds]
    if slow:
        words = [
            f"{term.name} communication is exposed for {format_seconds(term.measured_seconds or 0.0)}, expected are "
            f"{format_seconds(term.expected_seconds)}"
            for term in slow
        ]
        links = explaining_links(case, case.expected_seconds + seconds)
        more = [f"{links.words} would take about that long"] if links else []
        yield _measured("slow-network", seconds, *words, *more, *signs, detail=links.words if links else "")
        return
    excess = step - case.expected_seconds if step is not None and case.critical is None else 0.0
    if excess <= 0.0 or step is None or not (signs or step > case.limit_seconds):
        if signs:
            yield Finding(cause="slow-network", basis="possible", seconds=0.0, evidence=signs)
        return
    links = explaining_links(case, step)
    if links is not None or signs:
        words = [f"a step would take that long with {links.words}"] if links is not None else []
        yield Finding(
            cause="slow-network",
            basis="measured" if signs else "possible",
            seconds=excess,
            evidence=(*words, *signs),
            detail=links.words if links is not None else "",
        )


def host_bound(case: Case) -> Iterator[Finding]:
    """The device waits for the host to launch its work."""
    rank = case.critical
    if rank is not None:
        excess = next((term.excess_seconds or 0.0 for term in terms(case) if term.name == HOST), 0.0)
        excess -= rank.allocation_seconds  # a cause of its own
        if excess >= WORTH * _step(case):
            launches = f", which ran {rank.launches:,.0f} kernels" if rank.launches else ""
            words = f"nothing runs on rank {rank.rank} for {format_seconds(rank.idle_seconds)} a step{launches}"
            yield _measured("host-bound", excess, words)
        return
    row = _row(case)
    sizes: list[Row] = [{"micro_batch": row["micro_batch"] * factor} for factor in (2, 4, 8)] if row else []
    passes = format_seconds(case.prediction.time.framework_seconds)
    words = (
        f"micro-batches of {case.plan.micro_batch} leave the GPU short of work: the host's own time is {passes} a step"
    )
    yield from _priced(case, "host-bound", sizes, f"{words}, and products are small")


def power_or_clock(case: Case) -> Iterator[Finding]:
    """All ranks compute more slowly than their GPUs should: a power limit, heat, or kernels that are not the best."""
    signs = _signs(case, "power-or-clock")
    ratios = [
        (rank.compute_seconds - rank.optimizer_seconds) / expected
        for rank in case.ranks
        if rank.on_gpu and (expected := case.expected_compute(rank.rank))
    ]
    limit = case.prediction.interval[1] / case.expected_seconds
    ratio = min(ratios, default=0.0)
    if ratio > max(limit, 1.0 + WORTH):
        compute = case.prediction.time
        whole = compute.forward_seconds + compute.backward_seconds + compute.recompute_seconds
        words = f"every rank that was recorded computes {ratio - 1.0:.0%} longer than expected"
        yield _measured("power-or-clock", (ratio - 1.0) * whole, words, *signs)
    elif signs and not ratios:
        yield Finding(cause="power-or-clock", basis="possible", seconds=0.0, evidence=signs)


def allocator_retries(case: Case) -> Iterator[Finding]:
    """Memory is nearly full: the allocator gives memory back to the driver and asks again, and the device waits."""
    rank, signs = case.critical, _signs(case, "allocator-retries")
    seconds = rank.allocation_seconds if rank is not None else 0.0
    retries = sum(snapshot.retries for snapshot in case.snapshots)
    words = [f"the allocator gave segments back and asked anew {retries} times in the snapshot"] if retries else []
    if rank is not None and seconds >= 0.5 * WORTH * _step(case):
        often = f"{rank.allocations:.0f} times and {format_seconds(seconds)} a step"
        calls = f"rank {rank.rank} is in the driver for memory {often}"
        yield _measured("allocator-retries", seconds, calls, *words, *signs)
    elif signs or words:
        yield Finding(cause="allocator-retries", basis="possible", seconds=0.0, evidence=(*words, *signs))


def padding(case: Case) -> Iterator[Finding]:
    """Tokens that are computed and say nothing."""
    if case.padding is None or case.padding.share < WORTH:
        return
    share = case.padding.share
    words = f"{share:.0%} of the tokens of {case.padding.samples:,} samples are padding (token {case.padding.token})"
    yield _measured("padding", share * _step(case), words)


def no_fused_attention(case: Case) -> Iterator[Finding]:
    """Attention writes its scores to memory."""
    if not case.plan.flash_attention:
        yield from _priced(case, "no-fused-attention", [{"flash": True}], "the plan has no fused attention")
        return
    signs = _signs(case, "no-fused-attention")
    slow = _without_fused_attention(case)
    if slow is None:
        return
    loss = slow - case.expected_seconds
    if signs and loss > 0.0:
        yield _measured("no-fused-attention", loss, *signs)
    elif _explains(case, slow):
        words = f"without fused attention a step would take {format_seconds(slow)}"
        yield Finding(cause="no-fused-attention", basis="possible", seconds=loss, evidence=(words,))


def wide_numbers(case: Case) -> Iterator[Finding]:
    """Products in fp32, which tensor cores do not take, or TF32 switched off."""
    if case.plan.job.precision != "fp32":
        return
    precision: Precision = "bf16" if all(pool.gpu.peak("bf16") for pool in case.plan.cluster.pools) else "fp16"
    after = with_job(case, lambda job: replace(job, precision=precision))
    yield from _found(case, "fp32", after, "weights and products are in fp32", *_signs(case, "fp32"))


def wide_gradients(case: Case) -> Iterator[Finding]:
    """Gradients are summed over replicas in fp32."""
    if case.plan.data_parallel < 2 or case.plan.job.bf16_gradients or case.plan.job.precision == "fp32":
        return
    after = with_job(case, lambda job: replace(job, options=replace(job.options, grad_reduce="bf16")))
    yield from _found(case, "fp32-gradients", after, "gradients are reduced in fp32")


def recomputation(case: Case) -> Iterator[Finding]:
    """Activations are computed twice that memory has room for."""
    if {stage.recompute.granularity for stage in case.plan.stages} == {"none"}:
        return
    changes: list[Row] = [{"recompute": mode, "recompute_layers": 0} for mode in (NONE, SELECTIVE)]
    longest = max(stage.layer_count for stage in case.plan.stages)
    layers = -(-longest // case.plan.schedule.virtual_stages)
    parts = sorted({1, layers // 4, layers // 2, 3 * layers // 4} - {0})
    changes += [{"recompute": BLOCK, "recompute_layers": count} for count in parts]
    seconds = case.prediction.time.recompute_seconds
    yield from _priced(
        case, "recomputation", changes, f"recomputation takes {format_seconds(seconds)} of a step, and memory has room"
    )


def tensor_across_machines(case: Case) -> Iterator[Finding]:
    """Tensor parallelism leaves the fast links of a machine."""
    row = _row(case)
    if not row or row["tp"] <= max(pool.domain_gpus for pool in case.plan.cluster.pools):
        return
    seconds = case.prediction.time.tensor_parallel_seconds
    yield from _priced(
        case,
        "tensor-across-machines",
        _narrower(case, row),
        f"tensor parallelism of {row['tp']} leaves the machine and takes {format_seconds(seconds)} of a step",
    )


def small_products(case: Case) -> Iterator[Finding]:
    """Tensor parallelism makes matrix products small and adds two sums a layer."""
    row = _row(case)
    if not row or row["tp"] < 2 or row["tp"] > max(pool.domain_gpus for pool in case.plan.cluster.pools):
        return
    seconds = case.prediction.time.tensor_parallel_seconds
    words = f"tensor parallelism of {row['tp']} takes {format_seconds(seconds)} of a step, and makes products small"
    yield from _priced(case, "small-products", _narrower(case, row), words)


def few_micro_batches(case: Case) -> Iterator[Finding]:
    """A pipeline that fills and drains for long, as it has few micro-batches for its depth."""
    row, bubble = _row(case), case.prediction.time.bubble_seconds
    if not row or row["pp"] < 2 or bubble < WORTH * case.expected_seconds:
        return
    (context,) = contexts_of(case.plan, case.efficiency).values()
    changes: list[Row] = [{"micro_batch": size} for size in {row["micro_batch"] // 2, row["micro_batch"] // 4} - {0}]
    for stages in virtual_stages(context, Space(), row["pp"]):
        first, last = even_split(context, row["pp"] * stages)
        changes.append({"vpp": stages, "overlap_pp": stages > 1, "first_layers": first, "last_layers": last})
    for factor in (2, 4, 8):
        if row["pp"] % factor == 0 and case.plan.job.global_batch % (row["dp"] * factor * row["micro_batch"]) == 0:
            changes += _with_depth(case, row, factor)
    count = case.plan.replicas[0].micro_batches
    words = (
        f"{row['pp']} stages share {count} micro-batches: the pipeline stands still for {format_seconds(bubble)}, "
        f"{bubble / case.expected_seconds:.0%} of a step"
    )
    after = changed(case, changes)
    if after is not None:
        yield from _found(case, "few-micro-batches", after, words)
        return
    larger = with_job(case, lambda job: replace(job, global_batch=MORE_SAMPLES * job.global_batch))
    saving = 0.0 if larger is None else case.expected_seconds - larger.iteration_seconds / MORE_SAMPLES
    if saving >= WORTH * case.expected_seconds:
        more = f"with {MORE_SAMPLES} times the global batch as many samples would take so much less"
        yield Finding(
            cause="few-micro-batches", basis="priced", seconds=saving, evidence=(words, more),
            plan=larger, detail="larger batch",
        )  # fmt: skip


def unequal_stages(case: Case) -> Iterator[Finding]:
    """A stage of the pipeline works longer than the others, which wait for it."""
    row = _row(case)
    if not row or row["pp"] < 2:
        return
    stages = row["pp"] * row["vpp"]
    layers = len(case.plan.model.layers)
    even = layers // stages
    ends = range(max(even - 3, 0), even + 4)
    changes = [
        {"first_layers": first, "last_layers": last}
        for first in ends
        for last in (ends if stages > 2 else (layers - first,))
        if last >= 0 and first + last <= layers
    ]
    counts = [stage.layer_count for stage in case.plan.replicas[0].stages]
    yield from _priced(
        case, "unequal-stages", changes, f"stages have {'/'.join(map(str, counts))} layers, and the ends more"
    )


def sharded_weights(case: Case) -> Iterator[Finding]:
    """ZeRO-3 gathers weights, and ZeRO-2 sums gradients, in every pass over links that are slow for it."""
    row = _row(case)
    if not row or row["sharding"] < ZERO2:
        return
    seconds = case.prediction.time.data_parallel_seconds
    sizes = [row["micro_batch"] * factor for factor in (1, 2, 4)]
    changes = [
        {"sharding": sharding, "micro_batch": size, "overlap_grad": True, "overlap_param": True}
        for sharding in range(ZERO1, row["sharding"] + 1)
        for size in sizes
        if (case.plan.job.global_batch // row["dp"]) % size == 0
    ]
    words = f"weights or gradients travel in every pass: {format_seconds(seconds)} of a step that nothing hides"
    yield from _priced(case, "sharded-weights", changes, words)


def expert_exchange(case: Case) -> Iterator[Finding]:
    """Tokens travel far to their experts."""
    row = _row(case)
    if not row or row["ep"] < 2:
        return
    seconds = case.prediction.time.expert_parallel_seconds
    words = f"the exchange of tokens between {row['ep']} ranks takes {format_seconds(seconds)} of a step"
    plans = (
        changed(case, [{"ep": row["ep"] // factor} for factor in (2, 4, 8) if row["ep"] % factor == 0]),
        with_job(case, lambda job: replace(job, options=replace(job.options, dispatcher="flex"))),
    )
    able = [plan for plan in plans if plan is not None]
    best = min(able, key=lambda plan: plan.iteration_seconds, default=None)
    yield from _found(case, "expert-exchange", best, words)


def expert_loop(case: Case) -> Iterator[Finding]:
    """Experts run one after another, each in small kernels that the host launches."""
    job, experts = case.plan.job, [kind.moe.experts for kind in case.plan.model.kinds if kind.moe]
    if not experts or "expert_products" not in framework_options(job.framework):
        return
    words = f"{max(experts)} experts of a layer run one after another, on a few rows each"
    if job.options.expert_products == "loop":
        after = with_job(case, lambda job: replace(job, options=replace(job.options, expert_products="grouped")))
        yield from _found(case, "expert-loop", after, words)
        return
    slow = with_job(case, lambda job: replace(job, options=replace(job.options, expert_products="loop")))
    if slow is not None and not job.options.expert_products and _explains(case, slow.iteration_seconds):
        loss = slow.iteration_seconds - case.expected_seconds
        words = f"where {words}, a step would take {format_seconds(slow.iteration_seconds)}"
        yield Finding(cause="expert-loop", basis="possible", seconds=loss, evidence=(words,))


def exposed_gradients(case: Case) -> Iterator[Finding]:
    """Sums of gradients, or gathering of updated weights, that run after the passes instead of beside them."""
    row = _row(case)
    if not row or row["dp"] * row["cp"] < 2 or (row["overlap_grad"] and (row["overlap_param"] or not row["sharding"])):
        return
    changes: list[Row] = [{"overlap_grad": True}]
    if row["sharding"] != UNSHARDED:
        changes.append({"overlap_grad": True, "overlap_param": True})
    seconds = case.prediction.time.data_parallel_seconds
    words = f"gradients and weights between replicas take {format_seconds(seconds)} of a step that nothing hides"
    yield from _priced(case, "exposed-gradients", changes, words)


CAUSES: Mapping[str, Callable[[Case], Iterator[Finding]]] = {
    "stalls": stalls,
    "data-loading": data_loading,
    "slow-rank": slow_rank,
    "slow-network": slow_network,
    "host-bound": host_bound,
    "power-or-clock": power_or_clock,
    "allocator-retries": allocator_retries,
    "padding": padding,
    "no-fused-attention": no_fused_attention,
    "fp32": wide_numbers,
    "fp32-gradients": wide_gradients,
    "recomputation": recomputation,
    "tensor-across-machines": tensor_across_machines,
    "small-products": small_products,
    "few-micro-batches": few_micro_batches,
    "unequal-stages": unequal_stages,
    "sharded-weights": sharded_weights,
    "expert-exchange": expert_exchange,
    "expert-loop": expert_loop,
    "exposed-gradients": exposed_gradients,
}


def findings(case: Case) -> tuple[Finding, ...]:
    """Return what all causes find in a case: what saves most first, and behind it what is only possible."""
    rows = [finding for look in CAUSES.values() for finding in look(case)]
    return tuple(sorted(rows, key=lambda row: (row.basis == "possible", -row.seconds, row.cause)))


def _step(case: Case) -> float:
    return case.step_seconds or case.expected_seconds


def _row(case: Case) -> Row:
    return values_of(row_of(case.plan)) if case.plan.uniform else {}


def _signs(case: Case, cause: str) -> tuple[str, ...]:
    return tuple(
        f"{sign.place} ({sign.count} such line{'s' if sign.count > 1 else ''}): {sign.meaning}"
        for sign in case.signs
        if sign.cause == cause
    )


def _measured(cause: str, seconds: float, *evidence: str, detail: str = "") -> Finding:
    return Finding(cause=cause, basis="measured", seconds=seconds, evidence=evidence, detail=detail)


def _priced(case: Case, cause: str, changes: list[Row], *evidence: str) -> Iterator[Finding]:
    yield from _found(case, cause, changed(case, changes), *evidence)


def _found(case: Case, cause: str, after: Plan | None, *evidence: str) -> Iterator[Finding]:
    """Yield that a plan is slow for a cause, where the plan `after` it is mended is worth it."""
    if after is None:
        return
    saving = case.expected_seconds - after.iteration_seconds
    if saving >= WORTH * case.expected_seconds:
        yield Finding(cause=cause, basis="priced", seconds=saving, evidence=evidence, plan=after)


def _explains(case: Case, would: float) -> bool:
    """Whether nothing but a step that is too long is known, and a cause would make it about that long."""
    step = case.step_seconds
    if step is None or case.ranks or step <= case.limit_seconds:
        return False
    return (1.0 - NEAR) * step <= would <= (1.0 + NEAR) * step


def _without_fused_attention(case: Case) -> float | None:
    row = _row(case)
    if not row:
        return None
    from shardwright.cost.iteration.batch import evaluate

    (context,) = contexts_of(case.plan, case.efficiency).values()
    rows = strategies([row, {**row, "flash": False}])
    if not context.timed(rows).all():
        return None
    return float(evaluate(context, rows).seconds[1])


def _narrower(case: Case, row: Row) -> list[Row]:
    """Return rows of less tensor parallelism, whose GPUs go to replicas or stages."""
    changes: list[Row] = []
    for factor in (2, 4, 8, 16):
        tp = row["tp"] // factor
        if row["tp"] % factor or not tp:
            continue
        narrow = {"tp": tp, "sequence_parallel": row["sequence_parallel"] and tp > 1, "overlap_tp": False}
        narrow |= {"etp": min(row["etp"], tp)}
        for size in {row["micro_batch"], 1}:
            if case.plan.job.global_batch % (row["dp"] * factor * size) == 0:
                shard = {"sharding": max(row["sharding"], ZERO1), "overlap_grad": True, "overlap_param": True}
                changes.append({**narrow, "dp": row["dp"] * factor, "micro_batch": size, **shard})
        if row["pp"] * factor * row["vpp"] <= len(case.plan.model.layers):
            (context,) = contexts_of(case.plan, case.efficiency).values()
            first, last = even_split(context, row["pp"] * factor)
            ends = {"first_layers": first, "last_layers": last, "vpp": 1, "overlap_pp": False}
            changes.append({**narrow, "pp": row["pp"] * factor, **ends})
    return changes


def _with_depth(case: Case, row: Row, factor: int) -> list[Row]:
    """Return rows of fewer stages and more replicas."""
    (context,) = contexts_of(case.plan, case.efficiency).values()
    depth = row["pp"] // factor
    first, last = even_split(context, depth)
    flat = {"pp": depth, "dp": row["dp"] * factor, "vpp": 1, "overlap_pp": False, "first_layers": first}
    shard = {"overlap_grad": True, "overlap_param": True}
    return [{**flat, "last_layers": last, "sharding": max(row["sharding"], level), **shard} for level in (ZERO1, ZERO2)]
