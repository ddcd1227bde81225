"""The sections of one plan: settings, map, pipeline, time, memory, trust, money, and how to run it."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.trust.interval import carried
from shardwright.plans.plan import Plan, Prediction, StageMemory
from shardwright.reports.html.cluster_map import map_section
from shardwright.reports.html.timeline import timeline_section
from shardwright.reports.palette import MEMORY, TERMS, numbered
from shardwright.reports.section import Chart, Figure, Section, Table
from shardwright.reports.text import outcome
from shardwright.reports.text.outcome import effect_words
from shardwright.reports.text.plans import settings_of
from shardwright.reports.words import pools_assumed
from shardwright.search.renting import choice_on_cluster
from shardwright.units import (
    SECONDS_PER_HOUR,
    clock,
    counted,
    format_bytes,
    format_count,
    format_dollars,
    format_seconds,
)

MOST_STAGES = 12  # in the chart of memory; of more, the fullest of each GPU type is drawn
SMALLEST_SHARE = 0.0005  # of an iteration; a smaller term is not worth a row


def plan_sections(plan: Plan, efficiency: Efficiency) -> tuple[Section, ...]:
    """Return the sections of a costed, legal plan."""
    return (
        settings_section(plan),
        map_section(plan),
        timeline_section(plan, efficiency),
        time_section([("this plan", plan)]),
        memory_section(plan),
        trust_section(plan.predicted),
        money_section(plan),
    )


def figures(plan: Plan) -> Iterator[Figure]:
    """Yield the key figures of a costed plan."""
    prediction = plan.predicted
    seconds = prediction.iteration_seconds
    low, high = (clock(end, like=seconds) for end in prediction.interval)
    sure = "; ".join(words for words in (f"80 % sure: {low} to {high}", effect_words(prediction.site)) if words)
    yield Figure(label="iteration", value=clock(seconds, like=seconds), note=sure)
    tokens = f"{format_count(prediction.tokens_per_second / plan.gpus)} a GPU"
    yield Figure(label="tokens a second", value=format_count(prediction.tokens_per_second), note=tokens)
    yield Figure(label="MFU", value=f"{prediction.mfu:.1%}", note="of the dense peak of the GPUs in use")
    worst = outcome.fullest(prediction)
    share = f"{worst.total_bytes / worst.capacity_bytes:.0%} of {format_bytes(worst.capacity_bytes)}"
    fits = f"{share}; fits with {prediction.fit_probability:.0%}"
    yield Figure(label="fullest GPU", value=format_bytes(worst.total_bytes), note=fits)
    hours, dollars = prediction.hours_total, prediction.dollars_total
    if hours is not None:
        least, most = (format_seconds(end * SECONDS_PER_HOUR) for end in carried(prediction, hours))
        note = f"80 % sure: {least} to {most}"
        yield Figure(label="whole run", value=format_seconds(hours * SECONDS_PER_HOUR), note=note)
    if dollars is not None and hours is not None:
        least, most = (format_dollars(end) for end in carried(prediction, dollars))
        yield Figure(label="cost of the run", value=format_dollars(dollars), note=f"{least} to {most}")
    elif prediction.dollars_per_hour is not None:
        yield Figure(label="price", value=f"{format_dollars(prediction.dollars_per_hour)} an hour")


def settings_section(plan: Plan) -> Section:
    """Return what to set."""
    rows = tuple((name, words) for name, words in settings_of(plan))
    return Section(
        name="plan",
        title="The plan",
        lead=f"Bottleneck: {outcome.bottleneck(plan.predicted)}.",
        table=Table(columns=("setting", "value"), rows=rows, words=("setting", "value"), open=True),
    )


def time_section(plans: list[tuple[str, Plan]]) -> Section:
    """Return where the time of one plan or several goes, term by term."""
    times = [(name, plan.predicted) for name, plan in plans]
    longest = max(prediction.iteration_seconds for _, prediction in times)
    terms = {
        field: words
        for field, words in outcome.TERMS.items()
        if any(getattr(prediction.time, field) >= SMALLEST_SHARE * longest for _, prediction in times)
    }
    seconds = [[getattr(prediction.time, field) for field in terms] for _, prediction in times]
    rows = tuple(
        (
            words,
            *(
                cell
                for _, prediction in times
                for cell in (
                    clock(getattr(prediction.time, field), like=longest),
                    f"{getattr(prediction.time, field) / prediction.iteration_seconds:.1%}",
                )
            ),
        )
        for field, words in terms.items()
    )
    names = tuple(name for name, _ in times)
    columns = ("term", *(cell for name in names for cell in (name, "share" if len(names) == 1 else f"share, {name}")))
    label = "Seconds of an iteration by what they are spent on; the table has the same figures."
    return Section(
        name="time",
        title="Where the time goes",
        lead="One iteration, seen from the stage that decides it. Communication counts as far as computation does not "
        "hide it.",
        chart=Chart(
            kind="bars",
            label=label,
            data={
                "unit": "seconds",
                "rows": names,
                "kinds": list(terms.values()),
                "colours": [numbered(TERMS[field]) for field in terms],
                "values": seconds,
            },
        ),
        table=Table(columns=columns, rows=rows, words=("term",)),
    )


def memory_section(plan: Plan) -> Section:
    """Return the peak memory of a GPU of each stage, by kind, against its capacity."""
    prediction = plan.predicted
    stages = [
        (_stage_name(plan, number, place), memory)
        for number, row in enumerate(prediction.memory)
        for place, memory in enumerate(row)
    ]
    gpus = [stage.gpu for stage in plan.stages]
    by_type = {
        name: [row for row, gpu in zip(stages, gpus, strict=True) if gpu == name] for name in dict.fromkeys(gpus)
    }
    stages = [row for rows in by_type.values() for row in rows]
    drawn, whose = stages, "each stage"
    if len(stages) > MOST_STAGES:
        drawn, whose = [_fullest_of(name, rows) for name, rows in by_type.items()], "the fullest stage of each GPU type"
    kinds = [name for name in outcome.MEMORY_TERMS if any(_term(memory, name) for _, memory in stages)]
    chart = Chart(
        kind="bars",
        label=f"Peak memory of one GPU of {whose} by kind, with its capacity; the table has all stages.",
        data={
            "unit": "bytes",
            "rows": [name for name, _ in drawn],
            "kinds": kinds,
            "colours": [numbered(MEMORY[kind]) for kind in kinds],
            "values": [[_term(memory, kind) for kind in kinds] for _, memory in drawn],
            "limits": [memory.capacity_bytes for _, memory in drawn],
            "limit_name": "capacity",
        },
    )
    rows = tuple(
        (
            name,
            *(format_bytes(_term(memory, kind)) for kind in kinds),
            format_bytes(memory.total_bytes),
            format_bytes(memory.capacity_bytes),
            f"{memory.total_bytes / memory.capacity_bytes:.0%}",
        )
        for name, memory in stages
    )
    return Section(
        name="memory",
        title="Memory",
        lead=f"Peak of one GPU of {whose}. The plan fits with probability {prediction.fit_probability:.0%}.",
        chart=chart,
        table=Table(columns=("stage", *kinds, "total", "capacity", "full"), rows=rows, words=("stage",)),
    )


def _fullest_of(gpu: str, rows: list[tuple[str, StageMemory]]) -> tuple[str, StageMemory]:
    """Return the stage of a GPU type that needs most, with words for all of them."""
    name, memory = max(rows, key=lambda row: row[1].total_bytes)
    return f"{gpu}: {name.rpartition(':')[0]}, of {counted(len(rows), 'stage')}", memory


def _term(memory: StageMemory, name: str) -> float:
    return float(getattr(memory, f"{name}_bytes"))


def _stage_name(plan: Plan, replica: int, place: int) -> str:
    kind = f"replica {replica + 1}, " if len(plan.replicas) > 1 else ""
    return f"{kind}stage {place}: {plan.replicas[replica].stages[place].gpu}"


def trust_section(prediction: Prediction) -> Section:
    """Return the interval and the published runs that the prediction is based on."""
    low, high = (clock(end, like=prediction.iteration_seconds) for end in prediction.interval)
    lead = f"In 80 of 100 cases an iteration takes {low} to {high}."
    if prediction.measured is not None:
        measured = outcome.measured_words(prediction.measured)
        lead += f" {measured[0].upper()}{measured[1:]}."
    if not prediction.evidence:
        return Section(name="trust", title="How sure", lead=f"{lead} No published run is near this plan.")
    rows = tuple(
        (
            f"{run.model} on {run.gpus} {run.gpu}",
            f"{run.framework}; {run.strategy}",
            format_count(run.tokens_per_second),
            f"{run.error:+.0%}",
            f"{run.distance:.2g}",
            run.source,
        )
        for run in prediction.evidence
    )
    columns = ("published run", "setting", "tokens/s", "predicted", "distance", "source")
    lead += " The nearest published runs, each beside what a calibration without it predicts:"
    words = ("published run", "setting", "source")
    return Section(
        name="trust", title="How sure", lead=lead, table=Table(columns=columns, rows=rows, words=words, open=True)
    )


def money_section(plan: Plan) -> Section:
    """Return prices with what is known of them, and what interruptions cost."""
    points = pools_assumed(plan.cluster.pools)
    risky = choice_on_cluster(plan)
    if risky is not None:
        points.insert(
            0,
            f"{risky.interruptions:,.1f} interruptions expected in {format_seconds(risky.hours * SECONDS_PER_HOUR)}; "
            f"{risky.lost_share:.1%} of the paid hours are lost to them",
        )
    points += [f"{plan.model.name}: {words}" for words in (*plan.model.guesses, *plan.model.assumed)]
    return Section(
        name="money",
        title="Money and assumptions",
        lead=f"{outcome.money_words(plan.predicted)}.",
        points=tuple(dict.fromkeys(points)),
    )
