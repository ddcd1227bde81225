"""What the page may ask, and how much of it: plain values in, library objects out.

A request names models and GPUs of the catalogue, never a file, a folder or an expression, so nothing that it says
reaches the file system. Every request carries all that it needs; the same request gives the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.errors import Problem, bad, reject
from shardwright.plans.ranking import Ranking
from shardwright.records import record
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.cluster import parse_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.presets import find_preset, preset_model, preset_names
from shardwright.spec.text.fields import Section
from shardwright.trainers.plan import plan

MOST_GPUS = 65_536
MOST_SECONDS = 120.0  # of an answer
MOST_CHARACTERS = 400  # of any text
MOST_SAMPLES = 10**9

# What a JSON document may say: the fields of a `PlanRequest` by their kind.
REQUEST_TEXTS = ("model", "cluster", "tokens", "precision", "objective", "framework")
REQUEST_SIZES = ("global_batch", "seq_len")
REQUEST_LIMITS = ("budget_dollars", "deadline_hours")


@record
class PlanRequest:
    """What to plan: a preset, a cluster in its short form, batch, and limits on the whole run."""

    model: str
    cluster: str
    global_batch: int
    seq_len: int
    tokens: str | None = None
    precision: str = "bf16"
    objective: str = "time"
    budget_dollars: float | None = None
    deadline_hours: float | None = None
    framework: str = "megatron"


def plan_request(fields: object) -> PlanRequest:
    """Return the request that a JSON document makes. Raises SpecError with every field that is missing, unknown or of
    another kind."""
    problems: list[Problem] = []
    section = Section("request", fields if isinstance(fields, Mapping) else {}, problems)
    section.reject_unknown(REQUEST_TEXTS + REQUEST_SIZES + REQUEST_LIMITS)
    texts = {name: value for name in REQUEST_TEXTS if (value := section.text(name)) is not None}
    sizes = {name: section.integer(name, most=MOST_SAMPLES) for name in REQUEST_SIZES}
    limits = {name: section.number(name) for name in REQUEST_LIMITS}
    for name in ("model", "cluster", *REQUEST_SIZES):
        section.require(name, "say which")
    reject(problems)
    return PlanRequest(**texts, **sizes, **limits)  # type: ignore[arg-type]


def planned(request: PlanRequest, *, top: int = 3, efficiency: Efficiency | None = None) -> Ranking:
    """Return the plans for a request. Raises SpecError for what is not known or beyond the limits."""
    model, cluster, job = described(request)
    return plan(model, cluster, job, top=top, efficiency=efficiency)


def described(request: PlanRequest) -> tuple[Model, Cluster, Job]:
    """Return what a request describes. Raises SpecError for what is not known or beyond the limits."""
    job = make_job(
        global_batch=request.global_batch,
        seq_len=request.seq_len,
        tokens=request.tokens and _short("tokens", request.tokens),
        precision=_short("precision", request.precision),
        objective=_short("objective", request.objective),
        budget_dollars=request.budget_dollars,
        deadline_hours=request.deadline_hours,
        framework=_short("framework", request.framework),
    )
    return _model(request.model), _cluster(request.cluster), job


def _model(name: str) -> Model:
    """Return a preset; the name of a file is none."""
    preset = find_preset(_short("model", name))
    if preset is None:
        near = get_close_matches(name.casefold(), preset_names(), n=5, cutoff=0.4)
        raise bad(
            "model", f"{name!r} is not in the catalogue", f"near it: {', '.join(near)}" if near else "ask for the list"
        )
    return preset_model(preset)


def _cluster(text: str) -> Cluster:
    """Return a cluster in its short form."""
    cluster = parse_cluster(_short("cluster", text))
    if cluster.gpus > MOST_GPUS:
        raise bad("cluster", f"has {cluster.gpus:,} GPUs", f"at most {MOST_GPUS:,} at a time")
    return cluster


def _short(name: str, text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise bad(name, f"has {len(text):,} characters", f"at most {MOST_CHARACTERS}")
    return text
