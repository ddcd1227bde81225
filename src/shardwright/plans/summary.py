"""Plans in short: one row of figures each, as data, as text and as HTML, for a notebook and for a data frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from shardwright.plans.plan import Plan
from shardwright.units import GIBIBYTE, SECONDS_PER_HOUR, format_dollars, format_seconds

Cell = str | int | float | None


def figures(plan: Plan) -> Mapping[str, Cell]:
    """Return the figures of a plan by name; degrees of a mixed plan are ranges ("2–5"), what is not known is None."""
    stages = [stage for replica in plan.replicas for stage in replica.stages]
    prediction = plan.prediction
    row: dict[str, Cell] = {
        "gpus": plan.gpus,
        "gpu": " + ".join(plan.gpus_by_type),
        "tensor_parallel": _range([stage.tensor_parallel for stage in stages]),
        "context_parallel": _range([stage.context_parallel for stage in stages]),
        "pipeline_parallel": _range([len(replica.stages) for replica in plan.replicas]),
        "data_parallel": plan.data_parallel,
        "expert_parallel": _range([stage.expert_parallel for stage in stages]),
        "virtual_stages": plan.schedule.virtual_stages,
        "micro_batch": plan.micro_batch,
    }
    if prediction is None:
        return row
    peak = max(stage.total_bytes for replica in prediction.memory for stage in replica)
    return row | {
        "iteration_seconds": prediction.iteration_seconds,
        "interval_low_seconds": prediction.interval[0],
        "interval_high_seconds": prediction.interval[1],
        "tokens_per_second": prediction.tokens_per_second,
        "mfu": prediction.mfu,
        "peak_memory_gib": peak / GIBIBYTE,
        "fit_probability": prediction.fit_probability,
        "dollars_per_hour": prediction.dollars_per_hour,
        "hours_total": prediction.hours_total,
        "dollars_total": prediction.dollars_total,
    }


def text_table(plans: Sequence[Plan]) -> str:
    """Return one aligned line a plan below a header, shorter than a terminal is wide."""
    columns = [[cell.rjust(max(map(len, column))) for cell in column] for column in zip(*_shown(plans), strict=True)]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def html_table(plans: Sequence[Plan]) -> str:
    """Return the same as an HTML table."""
    header, *rows = _shown(plans)
    body = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _range(values: Sequence[int]) -> Cell:
    return values[0] if len(set(values)) == 1 else f"{min(values)}–{max(values)}"


def _shown(plans: Sequence[Plan]) -> list[tuple[str, ...]]:
    """Return a header and the cells of each plan."""
    header = ("#", "GPU", "GPUs", "tp", "cp", "pp", "dp", "mbs", "iteration", "tokens/s", "MFU", "fits", "run", "$")
    return [header, *(_cells(place, plan) for place, plan in enumerate(plans, start=1))]


def _cells(place: int, plan: Plan) -> tuple[str, ...]:
    row, prediction = figures(plan), plan.prediction
    degrees = [row[f"{kind}_parallel"] for kind in ("tensor", "context", "pipeline", "data")]
    cells = [place, row["gpu"], plan.gpus, *degrees, plan.micro_batch]
    if prediction is not None:
        hours, dollars = prediction.hours_total, prediction.dollars_total
        cells += [
            format_seconds(prediction.iteration_seconds),
            f"{prediction.tokens_per_second:,.0f}",
            f"{prediction.mfu:.1%}",
        ]
        cells += [
            f"{prediction.fit_probability:.0%}",
            "–" if hours is None else format_seconds(hours * SECONDS_PER_HOUR),
        ]
        cells += ["–" if dollars is None else format_dollars(dollars)]
    return tuple(map(str, cells + ["–"] * (14 - len(cells))))
