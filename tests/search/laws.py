"""What holds of the planner's answers whatever the question: no plan beats the bound, and questions that are alike have
answers that are alike. A law returns what breaks it, in words; nothing where it holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.search.local_moves import moved
from tests.search.random_problems import GAP, Problem

from shardwright import Plan, Ranking, check, predict
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.learned import default_efficiency
from shardwright.cost.strategies import ZERO2, ZERO3, plan_of_row, row_of, stage_rows
from shardwright.plans.abilities import framework_problems
from shardwright.plans.findings import (
    DeeperPipelines,
    MixedPlans,
    Mixing,
    NotCovered,
    Offload,
    OtherContexts,
    UnequalReplicas,
)
from shardwright.plans.mesh import is_mesh
from shardwright.plans.trainer_options import as_own, beyond_own
from shardwright.search.mixed.restrictions import dropped
from shardwright.search.rules.filters import Filters
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import Space, parse_pins, split_choices, tensor_parallel_degrees, within
from shardwright.search.space.layouts import head_layers
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.catalog.gpus import gpus

FIT = 0.9
SLACK = 1e-9
GIB = 1024.0**3
BETTER = {  # of the same chip and links, with more memory
    "A100-SXM-40": "A100-SXM-80",
    "A100-PCIe-40": "A100-PCIe-80",
    "V100-SXM2-16": "V100-SXM2",
    "V100-PCIe-16": "V100-PCIe",
    "H100-SXM": "H200",
}
TRIES = 12  # changes drawn for each plan that is priced: most are illegal


def best_seconds(ranking: Ranking) -> float:
    """Return the least seconds that a ranking tells of, doubted plans among them."""
    plans = [*ranking.plans, *([ranking.passed_over.plan] if ranking.passed_over else [])]
    return min(plan.iteration_seconds for plan in plans)


def allowance(*rankings: Ranking) -> float:
    """Return by what part answers may differ from the best: what was asked for, or what they say themselves where a
    search ends before that is proven."""
    return max([GAP, *(ranking.search.gap or 0.0 for ranking in rankings)]) + SLACK


def bound_seconds(ranking: Ranking) -> float:
    found = ranking.best.predicted
    assert found.lower_bound_seconds is not None
    return found.lower_bound_seconds


def below_the_bound(problem: Problem, ranking: Ranking, *, moves: int, seed: int) -> Iterator[str]:
    """Yield a plan that is faster than the bound and of no kind that the certificate says it does not cover: the first
    of `moves` plans on a climb from the best one."""
    pick, bound = random.Random(seed), bound_seconds(ranking)
    starts = [ranking.best]
    if ranking.passed_over is not None:
        starts.append(ranking.passed_over.plan)
    if problem.job.framework != OWN and not beyond_own(problem.job):
        overlap = replace(ranking.best.overlap, tensor_parallel=False)
        own = replace(ranking.best, job=as_own(ranking.best.job), overlap=overlap, flash_attention=True)
        starts += [own] if in_question(problem, own) else []
    for start in starts:
        here, seconds = start, float("inf")
        for _ in range(0 if start.layered else moves // len(starts)):
            there = _next(problem, here, pick)
            if there is None:
                break
            found = predict(there).predicted
            if found.fit_probability < FIT:
                continue
            if found.iteration_seconds < bound * (1.0 - SLACK) and not left_out(problem, ranking, there):
                share = 1.0 - found.iteration_seconds / bound
                yield f"{there.job.framework}: {there!r} is {share:.3%} below the bound: {there.replicas}, {there.overlap}, {there.optimizer}"
                return
            if found.iteration_seconds < seconds * (1.0 + 0.02 * (pick.random() < 0.1)):
                here, seconds = there, found.iteration_seconds


def _next(problem: Problem, plan: Plan, pick: random.Random) -> Plan | None:
    """Return a legal plan near `plan` that its framework runs and that keeps what is asked."""
    for _ in range(TRIES):
        found = moved(plan, pick)
        if found is not None and found != plan and runs(found) and keeps(problem, found):
            return found
    return None


def runs(plan: Plan) -> bool:
    """Whether a plan is legal and its framework runs it, as far as is known."""
    return not check(plan) and not any(framework_problems(plan))


def keeps(problem: Problem, plan: Plan) -> bool:
    """Whether a plan keeps the pins and rules of a problem."""
    space, filters = parse_pins(problem.pins), Filters(rules=parse_rules(problem.rules, "rules"))
    pins = {axis: values for axis, values in space.pins.items() if axis != "gpus"}
    rows = [stage_rows(plan, replica) for replica in plan.replicas]
    if not all(within(replace(space, pins=pins), row).all() for row in rows):
        return False
    contexts = list(contexts_of(plan, default_efficiency()).values()) if problem.rules else []
    return not dropped(plan, contexts, filters)


def left_out(problem: Problem, ranking: Ranking, plan: Plan) -> bool:
    """Whether a plan is of a kind that the certificate of a ranking says it does not cover, or in no search's question:
    run neither by the job's framework nor, over several types, by `train`."""
    if not in_question(problem, plan):
        return True
    kinds = set(ranking.search.not_covered)
    if plan.uniform and plan.job.framework == problem.job.framework and _is_row(plan):
        return NotCovered.SPREAD_TENSOR_PARALLEL in kinds & kinds_of(plan)
    several = [kind for each in kinds if isinstance(each, UnequalReplicas) for kind in each.of]
    deepest = [kind.stages for kind in kinds if isinstance(kind, DeeperPipelines)]
    if any(len(replica.stages) > most for most in deepest for replica in plan.replicas):
        return True
    fewest = [kind.tokens for kind in kinds if isinstance(kind, OtherContexts)]
    if any(_has_other_contexts(plan, tokens) for tokens in fewest):
        return True
    if plan.optimizer.offload and any(isinstance(kind, Offload) for kind in kinds):
        return True
    if any(isinstance(kind, MixedPlans) and _mixes(plan, kind.of) for kind in kinds):
        return True
    return not kinds_of(plan).isdisjoint({*kinds, *several})


def _has_other_contexts(plan: Plan, tokens: int) -> bool:
    """Whether a plan over several types has context parallelism with fewer `tokens` on a GPU, or tiles no machines."""
    sizes = {pool.gpu.name: pool.gpus_per_node for pool in plan.cluster.pools}
    stages = [stage for stage in plan.stages if stage.context_parallel > 1]
    few = any(plan.job.seq_len // stage.context_parallel < tokens for stage in stages)
    torn = any(sizes[stage.gpu] % stage.gpus and stage.gpus % sizes[stage.gpu] for stage in stages)
    return len(plan.gpus_by_type) > 1 and (few or torn)


def _mixes(plan: Plan, of: Mixing) -> bool:
    """Whether a plan of pipelines is one of those over several types."""
    return len(plan.gpus_by_type) > 1 and (of is not Mixing.UNEQUAL or not is_mesh(plan))


def in_question(problem: Problem, plan: Plan) -> bool:
    """Whether the framework that a plan is priced for is the job's, and may run it, or `train` beside it."""
    framework, types = problem.job.framework, _joined(plan)
    if plan.job.framework == OWN:
        return framework == OWN or types > 1
    return framework == plan.job.framework and (types == 1 or is_mesh(plan))


def _joined(plan: Plan) -> int:
    """Return how many types a plan may have together with its own."""
    pools = {pool.gpu.name: pool for pool in plan.cluster.pools if pool.gpu.peak(plan.job.precision)}
    mine = {pools[name].gpu.vendor for name in plan.gpus_by_type}
    return sum(pool.gpu.vendor in mine for pool in pools.values())


def _is_row(plan: Plan) -> bool:
    """Whether a uniform plan is a row of the space of those on one type."""
    (name,) = plan.gpus_by_type
    row = row_of(plan)
    if plan_of_row(row, plan.model, plan.job, plan.cluster, name).replicas != plan.replicas:
        return False
    (context,) = contexts_of(plan, default_efficiency()).values()
    if int(row.tp[0]) not in tensor_parallel_degrees(context) or (row.pp[0] > 1 and row.sharding[0] in (ZERO2, ZERO3)):
        return False
    stages = int(row.pp[0] * row.vpp[0])
    firsts, lasts = split_choices(context, Space(), stages, head_layers(context))
    return (int(row.first_layers[0]), int(row.last_layers[0])) in set(zip(firsts.tolist(), lasts.tolist(), strict=True))


def kinds_of(plan: Plan) -> set[object]:
    """Return the kinds of plans, of those that a search may leave out, that a plan of pipelines is of."""
    stages = plan.stages
    degrees = {(stage.gpu, stage.tensor_parallel) for stage in stages}
    types = {gpu for gpu, _ in degrees}
    sites = {pool.site for pool in plan.cluster.pools if pool.gpu.name in types}
    sharding = plan.optimizer.sharding in ("zero2", "zero3")
    beyond = {
        NotCovered.VIRTUAL_STAGES: plan.schedule.virtual_stages > 1,
        NotCovered.ZERO_BUBBLE: plan.schedule.weights_apart,
        NotCovered.CONTEXT_OR_EXPERTS: plan.job.framework == OWN
        and any(stage.context_parallel * stage.expert_parallel > 1 for stage in stages),
        NotCovered.SHARDED_GRADIENTS: sharding,
        NotCovered.SHARDED_PIPELINES: sharding
        and len(types) == 1
        and any(len(each.stages) > 1 for each in plan.replicas),
        NotCovered.OTHER_MICRO_BATCHES: plan.micro_batch not in (1, 2, 4, 8),
        NotCovered.GROUPED_RECOMPUTATION: any(stage.recompute.method == "uniform" for stage in stages),
    }
    contexts = contexts_of(plan, default_efficiency())
    uneven = len(types) == 1 and (plan.job.framework != OWN or any(beyond.values()))
    found = {
        **beyond,
        NotCovered.EMPTY_STAGES: not all(stage.layer_count for stage in stages),
        NotCovered.SPREAD_STAGES: any(_spread([stage.gpu for stage in replica.stages]) for replica in plan.replicas),
        NotCovered.UNEQUAL_DEGREES: len({tp for _, tp in degrees}) > 1,
        NotCovered.UNEQUAL_DEGREES_OF_A_TYPE: len(degrees) > len(types),
        NotCovered.SPREAD_TENSOR_PARALLEL: any(tp > contexts[gpu].pool.domain_gpus for gpu, tp in degrees),
        NotCovered.IDLE_GPUS_OF_MACHINES: any(tp not in tensor_parallel_degrees(contexts[gpu]) for gpu, tp in degrees),
        NotCovered.UNEQUAL_REPLICAS_OF_A_TYPE: uneven and not plan.uniform,
        NotCovered.OTHER_SPLITS: uneven and plan.uniform,
        NotCovered.UNEQUAL_DEPTHS_OVER_SITES: len(sites) > 1 and len({len(each.stages) for each in plan.replicas}) > 1,
    }
    return {kind for kind, is_there in found.items() if is_there}


def _spread(types: list[str]) -> bool:
    """Whether stages of one type are apart."""
    blocks = [name for place, name in enumerate(types) if not place or name != types[place - 1]]
    return len(blocks) > len(set(blocks))


def priced_alike(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """A plan is legal and takes, by itself, what the search says."""
    for plan in (*ranking.plans, *([ranking.passed_over.plan] if ranking.passed_over else ())):
        said, found = plan.predicted, predict(plan).predicted
        if problems := check(plan):
            yield f"{plan!r} is not legal: {problems[0]}"
        if any(framework_problems(plan)):
            yield f"{plan!r} is not run by its framework: {next(iter(framework_problems(plan)))}"
        if said.iteration_seconds != found.iteration_seconds:
            yield f"{plan!r} takes {found.iteration_seconds!r}, the search said {said.iteration_seconds!r}"
        if said.lower_bound_seconds is not None and said.lower_bound_seconds > said.iteration_seconds:
            yield f"{plan!r} is below its bound"
        if not keeps(problem, plan):
            yield f"{plan!r} does not keep {problem.pins} and {problem.rules}"


def _no_worse(than: Plan, problem: Problem, name: str) -> Iterator[str]:
    """Yield why the answer to a problem is worse than a plan that it may have, or its bound above this."""
    rival = replace(than, cluster=problem.cluster, prediction=None)
    if not runs(rival) or not keeps(problem, rival):
        return
    found = predict(rival).predicted
    if found.fit_probability < FIT:
        return
    ranking = problem.planned()
    if not ranking.plans:
        yield f"{name}: no plan, where {rival!r} fits"
        return
    if bound_seconds(ranking) > found.iteration_seconds * (1.0 + SLACK) and not left_out(problem, ranking, rival):
        yield f"{name}: bound {bound_seconds(ranking):.6g} above {rival!r}: {rival.replicas}"
    if best_seconds(ranking) > found.iteration_seconds * (1.0 + allowance(ranking)):
        yield f"{name}: {best_seconds(ranking):.6g} s, where {rival!r} is known"


def best_of(ranking: Ranking) -> Plan:
    """Return the fastest plan that a ranking tells of."""
    other = ranking.passed_over.plan if ranking.passed_over else ranking.best
    return min((ranking.best, other), key=lambda plan: plan.iteration_seconds)


def more_machines(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """A machine more of the first group is no loss but for stragglers, of which the plan is priced again."""
    first, *rest = problem.nodes
    larger = replace(problem, nodes=({**first, "count": first["count"] + 1}, *rest))
    yield from _no_worse(best_of(ranking), larger, "a machine more")


def more_memory(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """More memory on every GPU of the first type is no loss."""
    gpu = problem.nodes[0]["gpu"]
    usual = gpus()[gpu].memory_bytes / GIB
    more = [{**row, "memory_gb": round(1.5 * row.get("memory_gb", usual))} for row in problem.nodes]
    nodes = tuple(new if row["gpu"] == gpu else row for new, row in zip(more, problem.nodes, strict=True))
    yield from _no_worse(best_of(ranking), replace(problem, nodes=nodes), "more memory")


def faster_links(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """Networks and links between sites of twice the rate are no loss."""
    nodes = tuple({**row, "inter_node_gbps": 2 * row["inter_node_gbps"]} for row in problem.nodes)
    links = tuple({**link, "gbps": 2 * link["gbps"]} for link in problem.site_links)
    yield from _no_worse(best_of(ranking), replace(problem, nodes=nodes, site_links=links), "faster links")


def better_gpus(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """GPUs of the same kind with more memory, and no slower, are no loss."""
    there = {row["gpu"] for row in problem.nodes}
    for gpu, better in BETTER.items():
        if gpu in there and better not in there:
            nodes = tuple({**row, "gpu": better} if row["gpu"] == gpu else row for row in problem.nodes)
            rival = _on_other_gpus(best_of(ranking), gpu, better)
            yield from _no_worse(rival, replace(problem, nodes=nodes), f"{better} in place of {gpu}")


def _on_other_gpus(plan: Plan, gpu: str, better: str) -> Plan:
    """Return a plan with GPUs of another type in place of those of one."""
    return replace(
        plan,
        replicas=tuple(
            replace(
                replica,
                stages=tuple(replace(stage, gpu=better) if stage.gpu == gpu else stage for stage in replica.stages),
            )
            for replica in plan.replicas
        ),
    )


def no_share_helps(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """No type idles where the uniform plan over all types, which gives each an equal share, is faster."""
    for entry in ranking.baselines:
        plan = entry.plan
        if plan is None or plan.prediction is None or not runs(plan) or not keeps(problem, plan):
            continue
        fits = plan.prediction.fit_probability >= FIT
        if fits and plan.prediction.iteration_seconds * (1.0 + SLACK) < best_seconds(ranking):
            yield f"{best_seconds(ranking):.6g} s, where {plan!r} of the rules of thumb is known"


def twice(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """Twice the machines and the batch have the plan twice beside itself."""
    nodes = tuple({**row, "count": 2 * row["count"]} for row in problem.nodes)
    job = replace(problem.job, global_batch=2 * problem.job.global_batch)
    larger, best = replace(problem, nodes=nodes, job=job), best_of(ranking)
    if not best.layered and not problem.pins:
        both = replace(
            best,
            job=replace(best.job, global_batch=job.global_batch),
            replicas=tuple(replace(replica, count=2 * replica.count) for replica in best.replicas),
            optimizer=best.optimizer,
        )
        yield from _no_worse(both, larger, "twice")


def split_groups(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """Machines of one kind are the same whether they are told as one group or as two."""
    nodes = [
        part
        for row in problem.nodes
        for part in ({**row, "count": row["count"] - 1}, {**row, "count": 1})
        if part["count"]
    ]
    yield from _same(ranking, replace(problem, nodes=tuple(nodes)), "split groups")


def permuted_groups(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """The order of the groups decides nothing: neither whether there is a plan nor, but for the gap, its seconds."""
    other = replace(problem, nodes=tuple(reversed(problem.nodes))).planned()
    if bool(other.plans) != bool(ranking.plans):
        yield f"permuted: {len(other.plans)} plans, {len(ranking.plans)} before"
    elif problem.job.objective == "time" and len({row.get("site") for row in problem.nodes}) < 3:
        here, there = best_seconds(ranking), best_seconds(other)
        if max(here, there) > min(here, there) * (1.0 + allowance(ranking, other)):
            yield f"permuted: {there:.6g} s, {here:.6g} s before"
        if max(bound_seconds(ranking), bound_seconds(other)) > min(here, there) * (1.0 + SLACK):
            yield f"permuted: bounds {bound_seconds(ranking):.6g} and {bound_seconds(other):.6g}, plans {here:.6g} and {there:.6g}"


def _same(ranking: Ranking, problem: Problem, name: str) -> Iterator[str]:
    other = problem.planned()
    if [plan.replicas for plan in other.plans] != [plan.replicas for plan in ranking.plans]:
        yield f"{name}: {other.plans!r}, {ranking.plans!r} before"


def pinned(problem: Problem, ranking: Ranking) -> Iterator[str]:
    """A pin never beats the free search: here to what the best plan does not have."""
    row = row_of(best_of(ranking))
    size = int(row.micro_batch[0])
    for pin in (
        f"tp={2 if int(row.tp[0]) == 1 else 1}",
        f"micro_batch={2 if size == 1 else 1}",
        f"pp={int(row.pp[0])}",
    ):
        if pin.partition("=")[0] in {setting.partition("=")[0] for setting in problem.pins}:
            continue
        found = replace(problem, pins=(*problem.pins, pin)).planned()
        if not found.plans or problem.job.objective != "time":
            continue
        if best_seconds(found) * (1.0 + SLACK) < bound_seconds(ranking) and not left_out(
            problem, ranking, best_of(found)
        ):
            yield f"{pin}: {best_of(found)!r} is below the free bound {bound_seconds(ranking):.6g}: {best_of(found).replicas}"
        if best_seconds(found) * (1.0 + allowance(ranking)) < best_seconds(ranking):
            yield f"{pin}: {best_of(found)!r}, the free search found {best_seconds(ranking):.6g}"


Law = Callable[[Problem, Ranking], Iterator[str]]
LAWS: tuple[Law, ...] = (
    more_machines,
    more_memory,
    faster_links,
    better_gpus,
    no_share_helps,
    twice,
    split_groups,
    permuted_groups,
    pinned,
)
