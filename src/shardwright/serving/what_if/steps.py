"""What the page is told about a request, one step after the other: plans at once, then the front, then the best plan
with how good it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned import default_efficiency
from shardwright.cost.site.calibrated import anchored, calibrated, without_site
from shardwright.cost.site.calibration import SiteCalibration
from shardwright.errors import Problem, SpecError
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Fewer, Ranking
from shardwright.reports.html import front, plan_sections
from shardwright.reports.html.cluster_map import map_section
from shardwright.reports.html.page_of import answer, context_lines
from shardwright.reports.html.render import charts_of, figures_html, section_html
from shardwright.reports.html.timeline import timeline_section
from shardwright.reports.section import Section
from shardwright.reports.words import in_words
from shardwright.search.first_plans import first_plans
from shardwright.search.nearby import fewer_counts, point
from shardwright.search.planner import predict
from shardwright.search.replan import Kept, replan
from shardwright.serving.answers import Answer, plan_figures
from shardwright.serving.requests import PlanRequest, described, plan_request, planned
from shardwright.spec.read.cluster import groups_of, parse_cluster
from shardwright.trainers.plan import USUAL
from shardwright.trainers.runs import runners
from shardwright.units import format_count, format_seconds


def steps(fields: object, site: SiteCalibration | None = None, site_file: str = "") -> Iterator[Answer]:
    """Yield the answers to the JSON of a request, on the site of a calibration if one is given, by its file. `step`
    says what an answer is: `first` plans, the `front`, the `best` plan or `none`, or `errors`."""
    efficiency: Efficiency = default_efficiency()
    try:
        request = plan_request(fields)
        on_site = efficiency if site is None else calibrated(efficiency, site)
        yield from _steps(request, on_site, command_line(request, site_file))
    except SpecError as error:
        yield {"step": "errors", "errors": [_error(problem, fields) for problem in error.problems]}


def _steps(request: PlanRequest, efficiency: Efficiency, command: str) -> Iterator[Answer]:
    model, cluster, job = described(request)
    kept: Kept = {}
    quick: Plan | None = None
    for plan in first_plans(model, cluster, job, kept=kept, efficiency=without_site(efficiency)):
        if runners(plan):
            quick = predict(plan, efficiency=efficiency)
            yield _told("first", quick, _at_once(quick))
    if quick is None:
        yield _no_plan("Nothing fits by rule of thumb; searching further…", ())
    else:
        yield _sections("front", [front_section(quick, request.cluster, anchored(efficiency, quick))])
    ranking = planned(request, top=1, efficiency=efficiency)
    if ranking.infeasible is not None:
        remedies = map(in_words, ranking.infeasible.remedies)
        yield _no_plan(f"No plan: {in_words(ranking.infeasible.reason)}.", remedies)
        return
    best = ranking.best
    whole = [*_at_once(best), map_section(best), timeline_section(best, efficiency)]
    yield _told("best", best, whole) | {"search": _search_words(ranking), "command": command}
    yield _sections("front", [front_section(best, request.cluster, anchored(efficiency, best))])


def _at_once(plan: Plan) -> list[Section]:
    return [
        plan_sections.settings_section(plan),
        plan_sections.time_section([("this plan", plan)]),
        plan_sections.memory_section(plan),
    ]


def _told(step: str, plan: Plan, sections: Iterable[Section]) -> Answer:
    return {
        **_sections(step, sections),
        "answer": answer(plan),
        "context": list(context_lines(plan)),
        "key_figures": figures_html(plan_sections.figures(plan)),
        "figures": {"gpus": plan.gpus, **plan_figures(plan)},
        "misses": list(_misses(plan)),
    }


def _no_plan(words: str, remedies: Iterable[str]) -> Answer:
    return {"step": "none", "answer": words, "next": list(remedies)}


def _sections(step: str, sections: Iterable[Section]) -> Answer:
    shown = list(sections)
    return {
        "step": step,
        "sections": {section.name: section_html(section) for section in shown},
        "charts": charts_of(shown),
    }


def _misses(plan: Plan) -> Iterator[str]:
    """Yield what a plan that keeps not all limits says of them."""
    prediction = plan.predicted
    hours, dollars = prediction.hours_total, prediction.dollars_total
    deadline, budget = plan.job.deadline_hours, plan.job.budget_dollars
    if deadline is not None and hours is not None and hours > deadline:
        yield "misses the deadline"
    if budget is not None and dollars is not None and dollars > budget:
        yield "is over the budget"


def _search_words(ranking: Ranking) -> str:
    report = ranking.search
    words = f"best of {format_count(report.candidates)} candidates, in {format_seconds(report.seconds)}"
    return words if report.gap is None else f"proved within {report.gap:.2%} of the {words}"


def command_line(request: PlanRequest, site_file: str = "") -> str:
    """Return the command that makes the same plan, on the site of a calibration in a file."""
    words = {
        "model": request.model,
        "cluster": request.cluster,
        "global-batch": request.global_batch,
        "seq-len": request.seq_len,
        "tokens": request.tokens,
        "precision": None if request.precision == "bf16" else request.precision,
        "objective": None if request.objective == "time" else request.objective,
        "framework": None if request.framework == USUAL else request.framework,
        "calibration": site_file or None,
        "budget": request.budget_dollars and f"{request.budget_dollars:.12g}",
        "deadline": request.deadline_hours and f"{request.deadline_hours:.12g}",
    }
    arguments = [f"--{name} {quote(str(value))}" for name, value in words.items() if value is not None]
    return " ".join(["shardwright plan", *arguments, "--out plan.json"])


def _error(problem: Problem, fields: object) -> Answer:
    """Return a problem with the field of the page that it is about."""
    place = problem.path.strip("`").removeprefix("request: ").removesuffix("=")
    cluster = fields.get("cluster") if isinstance(fields, dict) else None
    about = "cluster" if isinstance(cluster, str) and place.startswith(cluster) else place
    return {"field": about, "message": problem.message, "hint": problem.hint}


def front_section(plan: Plan, cluster: str, efficiency: Efficiency | None) -> Section:
    """Return what fewer machines of `cluster`, in its short form, would take: plans with the settings of `plan`."""
    groups = [(int(count), rest) for count, _, rest in (part.partition("x") for part in groups_of(cluster))]
    here = point(tuple(count for count, _ in groups), plan)
    return front.front_section(
        (cluster, here), list(_fewer(plan, groups, efficiency)), plan.job, "; choose a point to plan it"
    )


def _fewer(plan: Plan, groups: list[tuple[int, str]], efficiency: Efficiency | None) -> Iterator[tuple[str, Fewer]]:
    kept: Kept = {}
    for nodes in fewer_counts([count for count, _ in groups]):
        part = "+".join(f"{count}x{rest}" for count, (_, rest) in zip(nodes, groups, strict=True) if count)
        replanned = replan(plan, parse_cluster(part), kept=kept, efficiency=efficiency)
        if replanned is not None:
            yield part, point(nodes, replanned)
