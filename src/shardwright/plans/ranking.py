"""`Ranking`: what a search returns, the best plans with what was tried and why the rest fell out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.plans.document import save
from shardwright.plans.findings import Failure, NoTrainer, RareSwitch, Reason, Rejection, Remedy, Shortage, Uncovered
from shardwright.plans.plan import Plan, Prediction
from shardwright.records import record
from shardwright.units import GIBIBYTE, SECONDS_PER_HOUR, format_dollars, format_seconds

if TYPE_CHECKING:
    import pandas

Cell = str | int | float | None


@record
class Baseline:
    """A plan that an expert would try, and the rule of thumb behind it. `plan` is None where the rule gives no plan
    that fits; `failure` says why."""

    rule: str
    plan: Plan | None
    failure: Failure | Shortage | None = None


@record
class SearchReport:
    """How the search went. `candidates` is the size of the declared space; every candidate is in exactly one count
    of `rejected`, or was costed (`costed`). `phases` are seconds by name, in order. `not_covered` names kinds of plans
    that neither the search nor its bound looked at, `gap` is how far the first plan is above the bound at most. Where
    dollars were minimised over several GPU types, no plan costs less than `lower_bound_dollars` an iteration. A search
    that was `interrupted` ended early: its gap holds for what it did not look at, too. Plans up to a part
    `indifference` above the best are as good: the one with the fewest rare switches comes first."""

    candidates: int
    costed: int
    seconds: float
    rejected: tuple[tuple[Rejection, int], ...]
    phases: tuple[tuple[str, float], ...]
    not_covered: tuple[Uncovered, ...] = ()
    gap: float | None = None
    lower_bound_dollars: float | None = None
    interrupted: bool = False
    indifference: float = 0.0


@record
class NoPlan:
    """Why no plan exists, and changes that would give one, nearest first."""

    reason: Reason
    remedies: tuple[Remedy, ...]


@record
class Nearby:
    """What the best plan for another batch or on other numbers of GPUs reaches: `tokens_per_second` of all GPUs, and a
    `gain` in tokens per second and GPU. `shares` are the micro-batches of unequal replicas, where those of `train` are
    in place of the framework's equal ones."""

    global_batch: int
    gpus: int
    tokens_per_second: float
    gain: float
    shares: tuple[int, ...] = ()


@record
class Fewer:
    """The same run on `nodes` machines of each group of the cluster: the GPUs that its plan uses, seconds of an
    iteration, and hours and dollars of the whole run, interruptions counted, where they are known."""

    nodes: tuple[int, ...]
    gpus: int
    iteration_seconds: float
    hours: float | None
    dollars: float | None


@record
class GpuShare:
    """What each of `count` GPUs of a type has of an SPMD program: of the rows of the batch, of what is cut otherwise
    (features, heads, classes), and of stored state that is gathered for use."""

    gpu: str
    count: int
    rows: float
    features: float
    state: float


@record
class SpmdProgram:
    """The fastest SPMD program found: the batch goes in `steps` parts whose gradients add up. No program at these
    shares takes less than `bound_seconds`. `sent` counts collectives of a step by method, `memory_bytes` is what the
    fullest GPU holds of state and saved activations."""

    iteration_seconds: float
    bound_seconds: float
    steps: int
    shares: tuple[GpuShare, ...]
    sent: tuple[tuple[str, int], ...]
    memory_bytes: float


@record(kw_only=False)
class NoProgram:
    """Why no SPMD program was found, in words."""

    reason: str


@record
class PassedOver:
    """A plan of less time or money than the first one, by a part `saving` within the search's `indifference`, that does
    not come first for what it has of rare `switches`; `pins` ask for it, as `axis=value`."""

    plan: Plan
    saving: float
    switches: tuple[RareSwitch, ...]
    pins: tuple[str, ...]


@record
class Usual:
    """The best plan without what hardly any published run has; it takes a part `loss` more time or money than the first
    one, and `pins` ask for it, as `axis=value`."""

    plan: Plan
    loss: float
    pins: tuple[str, ...]


@record
class WithOptions:
    """The first plan with options of its trainer that are left to it, which takes a part `saving` less of what the job
    minimises; `pins` ask for them, as `option=value`."""

    plan: Plan
    saving: float
    pins: tuple[str, ...]


@record
class Ranking:
    """Plans, best first (none if `infeasible` is set), with the baselines they were compared to. Where plans of several
    kinds span GPU types, `kinds` has the best of each; `nearby` is what `planner.with_nearby` found to pay, `fewer` the
    same run on fewer of the machines (`planner.on_fewer`; None where that was not asked), `program` what
    `planner.with_program` found. `passed_over` is the best of all where the first plan is as good and has fewer rare
    switches; `usual` is the best without any (`planner.with_usual`), where the first plan on GPUs of one type has
    some; `with_options` is the first plan with options of its trainer that pay (`trainers.plan`). `trainers` names who
    runs each plan (`trainers.runs.runners`), where that was asked; of plans that nobody
    runs `no_trainer` says why."""

    plans: tuple[Plan, ...]
    baselines: tuple[Baseline, ...]
    search: SearchReport
    infeasible: NoPlan | None = None
    kinds: tuple[Baseline, ...] = ()
    nearby: tuple[Nearby, ...] = ()
    fewer: tuple[Fewer, ...] | None = None
    program: SpmdProgram | NoProgram | None = None
    passed_over: PassedOver | None = None
    usual: Usual | None = None
    with_options: WithOptions | None = None
    trainers: tuple[tuple[str, ...], ...] = ()
    no_trainer: NoTrainer | None = None

    @property
    def best(self) -> Plan:
        """The first plan; raises LookupError where there is none."""
        if not self.plans:
            raise LookupError(f"no plan: {self._reason}")
        return self.plans[0]

    def save(self, path: str | Path) -> None:
        """Write the plan file of the best plan. Raises SpecError where that fails."""
        save(self.best, Path(path))

    def to_frame(self) -> pandas.DataFrame:
        """Return one row of figures a plan as a pandas data frame (`pip install pandas`)."""
        import pandas

        return pandas.DataFrame([figures(plan) for plan in self.plans])

    def __repr__(self) -> str:
        return text_table(self.plans) if self.plans else f"no plan: {self._reason}"

    def _repr_html_(self) -> str:
        from html import escape  # a terminal needs none

        return html_table(self.plans) if self.plans else f"<p>no plan: {escape(self._reason)}</p>"

    @property
    def _reason(self) -> str:
        """The kind of the reason: too little memory. `infeasible` has its figures, and what would help."""
        if self.infeasible is None:
            return "none was found"
        return re.sub("(?<=[a-z])[A-Z]", r" \g<0>", type(self.infeasible.reason).__name__).lower() + " (`.infeasible`)"


@record(kw_only=False)
class Origin:
    """Where a plan came from: `notes` on how it was read, and what of it moves time or memory without being priced."""

    notes: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()


@record
class Evaluation:
    """A user's own plan with its prediction, and the best plans for the same model, machines and job. `remedies` are
    single changes with which a plan fits that does not."""

    plan: Plan
    best: Ranking
    remedies: tuple[Remedy, ...] = ()

    def __repr__(self) -> str:
        return f"yours\n{text_table([self.plan])}\nthe best\n{self.best!r}"


def figures(plan: Plan) -> Mapping[str, Cell]:
    """Return the figures of a plan by name; degrees of a mixed plan are ranges ("2–5"), what is not known is None."""
    stages = plan.stages
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
    from html import escape

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
    row = figures(plan)
    degrees = [row[f"{kind}_parallel"] for kind in ("tensor", "context", "pipeline", "data")]
    cells = [place, row["gpu"], plan.gpus, *degrees, plan.micro_batch, *_predicted_cells(plan.prediction)]
    return tuple(map(str, cells))


def _predicted_cells(prediction: Prediction | None) -> tuple[str, ...]:
    if prediction is None:
        return ("–",) * 6
    hours, dollars = prediction.hours_total, prediction.dollars_total
    return (
        format_seconds(prediction.iteration_seconds),
        f"{prediction.tokens_per_second:,.0f}",
        f"{prediction.mfu:.1%}",
        f"{prediction.fit_probability:.0%}",
        "–" if hours is None else format_seconds(hours * SECONDS_PER_HOUR),
        "–" if dollars is None else format_dollars(dollars),
    )
