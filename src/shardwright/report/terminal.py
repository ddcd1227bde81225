"""Plans on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.plan.plan import Plan, Prediction
from shardwright.plan.ranking import Baseline, Ranking, SearchReport
from shardwright.report import describe
from shardwright.report.layout import bar, table, wrapped
from shardwright.units import format_bytes, format_count, format_seconds

WIDTH = 110
COLUMNS = (
    "#", "GPUs", "tp", "cp", "pp", "dp", "ep", "vpp", "mbs", "recompute", "sharding",
    "s/iteration", "tokens/s", "MFU", "peak GiB", "fits", "$/h",
)  # fmt: skip
MOST_STAGES = 16


def ranking_text(ranking: Ranking) -> str:
    """Return the report of a search that found plans."""
    best = ranking.best
    parts = [
        heading(best),
        plans_table(ranking.plans),
        plan_text(best),
        baselines_text(ranking.baselines, best),
        search_text(ranking.search),
        assumptions_text(best),
    ]
    return "\n\n".join(part for part in parts if part)


def heading(plan: Plan) -> str:
    """Return what was planned for."""
    lines = (describe.model_line(plan.model), describe.cluster_line(plan.cluster), describe.job_line(plan.job))
    return "\n".join(lines)


def plans_table(plans: Sequence[Plan]) -> str:
    """Return one row a plan."""
    return table(COLUMNS, [_row(place, plan) for place, plan in enumerate(plans, start=1)])


def _row(place: int, plan: Plan) -> list[str]:
    stage, found = plan.replicas[0].stages[0], predicted(plan)
    return [
        str(place),
        str(plan.gpus),
        str(stage.tensor_parallel),
        str(stage.context_parallel),
        str(len(plan.replicas[0].stages)),
        str(plan.data_parallel),
        str(stage.expert_parallel),
        str(plan.schedule.virtual_stages),
        str(plan.micro_batch),
        describe.recompute_words(plan),
        plan.optimizer.sharding + (f" +{plan.optimizer.offload:.0%} host" if plan.optimizer.offload else ""),
        f"{found.iteration_seconds:.3f}",
        format_count(found.tokens_per_second),
        f"{found.mfu:.1%}",
        f"{describe.fullest(found).total_bytes / 1024**3:.1f}",
        f"{found.fit_probability:.0%}",
        "?" if found.dollars_per_hour is None else f"{found.dollars_per_hour:,.0f}",
    ]


def predicted(plan: Plan) -> Prediction:
    """Return the prediction of a costed plan."""
    assert plan.prediction is not None, "only costed plans are shown"
    return plan.prediction


def plan_text(plan: Plan) -> str:
    """Return one plan in full: settings, memory per stage, where the time goes, money, how sure."""
    found = predicted(plan)
    low, high = found.interval
    lines = [
        f"{plan.label or 'Best plan'} on {plan.replicas[0].stages[0].gpu}",
        *_settings(plan),
        "",
        "  Memory of one GPU",
        *_memory_lines(plan, found),
        "",
        f"  Time of an iteration: {found.iteration_seconds:.3f} s (80 % interval {low:.3f} to {high:.3f} s; "
        f"no plan of the space is faster than {found.lower_bound_seconds:.3f} s)",
        *_time_lines(found),
        "",
        wrapped(f"Held back by: {found.binding}", "  ", WIDTH),
        f"  Money: {describe.money_words(found)}",
        f"  Fits in memory with probability {found.fit_probability:.0%}",
    ]
    return "\n".join(lines)


def _settings(plan: Plan) -> list[str]:
    words = [f"{name} {value}" for name, value in describe.switches(plan) if value not in ("off", "0%")]
    return [wrapped(", ".join(words), "  ", WIDTH)]


def _memory_lines(plan: Plan, found: Prediction) -> Iterator[str]:
    stages = found.memory[0]
    shown = range(len(stages))
    if len(stages) > MOST_STAGES:
        shown = range(MOST_STAGES - 2)
    for rank in shown:
        stage, ranges = stages[rank], plan.replicas[0].stages[rank].layers
        share = stage.total_bytes / stage.capacity_bytes
        layers = f"layers {ranges[0][0]}–{ranges[0][1] - 1}" if ranges[0][1] > ranges[0][0] else "no layers"
        layers += f" and {len(ranges) - 1} more runs" if len(ranges) > 1 else ""
        sizes = f"{format_bytes(stage.total_bytes)} of {format_bytes(stage.capacity_bytes)}"
        yield f"    stage {rank:<3} {bar(share)} {share:4.0%}  {sizes}  {layers}"
    if len(shown) < len(stages):
        yield f"    … and {len(stages) - len(shown)} more stages"
    yield wrapped(f"fullest: {describe.memory_terms(describe.fullest(found))}", "    ", WIDTH)


def _time_lines(found: Prediction) -> Iterator[str]:
    for name, words in describe.TERMS.items():
        seconds = getattr(found.time, name)
        share = seconds / found.iteration_seconds
        if share >= 0.0005:
            yield f"    {words:<32} {bar(share)} {share:6.1%}  {format_seconds(seconds)}"


def baselines_text(baselines: Sequence[Baseline], best: Plan) -> str:
    """Return what experts' rules of thumb give, against the best."""
    if not baselines:
        return ""
    rows = []
    for entry in baselines:
        if entry.plan is None:
            rows.append([entry.rule, "–", entry.reason])
        else:
            slower = predicted(entry.plan).iteration_seconds / predicted(best).iteration_seconds - 1.0
            rows.append([entry.rule, f"{predicted(entry.plan).iteration_seconds:.3f}", f"{slower:+.0%} time"])
    return "What an expert would try\n" + table(("rule", "s/iteration", "against the best"), rows, words=(0, 2))


def search_text(report: SearchReport) -> str:
    """Return how the search went and what fell out."""
    rate = report.candidates / max(report.seconds, 1e-9)
    lines = [
        f"Search: {report.candidates:,} candidates in {format_seconds(report.seconds)} "
        f"({format_count(rate)} a second), {report.costed:,} costed one by one"
    ]
    lines += [f"    {count:>16,}  {reason}" for reason, count in report.rejected]
    return "\n".join(lines)


def assumptions_text(plan: Plan) -> str:
    """Return what was assumed because nobody said it."""
    pools = (f"{pool.gpu.name}: {words}" for pool in plan.cluster.pools for words in pool.assumed)
    words = list(dict.fromkeys([*plan.model.assumed, *pools]))
    return "\n".join(["Assumed", *(wrapped(f"- {line}", "  ", WIDTH) for line in words)]) if words else ""


def infeasible_text(ranking: Ranking) -> str:
    """Return why nothing was found, and what would change that."""
    assert ranking.infeasible is not None, "only for searches that found nothing"
    lines = [f"No plan: {ranking.infeasible.reason}"]
    lines += [f"  - {remedy}" for remedy in ranking.infeasible.remedies]
    return "\n".join([*lines, "", search_text(ranking.search)])
