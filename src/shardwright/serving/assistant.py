"""A Model Context Protocol server over standard input and output: the library as tools for assistants.

Written with the official SDK (https://github.com/modelcontextprotocol/python-sdk). A tool takes plain values and
returns a short structured answer with what to try next; what is wrong with a request comes back as errors with their
remedies, so that an assistant can mend it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from mcp.server import MCPServer

from shardwright.cost.learned import default_efficiency
from shardwright.diagnosis.case import Case, signs_of
from shardwright.diagnosis.diagnose import Diagnosis, diagnosed
from shardwright.errors import bad
from shardwright.plans.plan import Plan
from shardwright.reports.words import in_words
from shardwright.serving.answers import Answer, diagnosis_answer, plan_answer, plan_figures, shop_answer, sizing_answer
from shardwright.serving.requests import MOST_SECONDS, PlanRequest, ShopRequest, planned, shopped, sized
from shardwright.serving.worker import answer_within
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.read.presets import preset_names
from shardwright.traces.memory import out_of_memory
from shardwright.trainers.runs import export

MOST_LOG_CHARACTERS = 200_000
INSTRUCTIONS = """Shardwright predicts and plans the training of large models: which GPUs, which parallel strategy, how
fast, how much memory, how much money. Ask `fit` whether a model fits some GPUs, `plan_training` for the best strategy
on given machines, `shop` for what to rent, `export_plan` for the files that run a plan, `diagnose` why a run is slow.
Clusters are written NODESxGPUSxTYPE, joined by +, e.g. 8x8xH100-SXM+16x8xA100-SXM-80. Times are seconds, money US
dollars; every prediction has an interval."""


def server() -> MCPServer:
    """Return the server with its tools."""
    tools = MCPServer("shardwright", instructions=INSTRUCTIONS, version=version("shardwright"))
    for tool in (fit, plan_training, shop, export_plan, compare, diagnose, catalogue):
        tools.add_tool(tool, structured_output=True)
    return tools


def _answered(ask: Callable[..., Any], show: Callable[[Any], Answer], *request: Any) -> Answer:
    """Return what `ask` finds for a request, as `show` puts it."""
    return answer_within(MOST_SECONDS, partial(_shown, ask, show, request))


def _shown(ask: Callable[..., Any], show: Callable[[Any], Answer], request: tuple[Any, ...]) -> Answer:
    return show(ask(*request))


def fit(model: str, gpu: str, gpus: int = 1, nodes: int = 1, seq_len: int = 2048) -> dict[str, Any]:
    """Say which ways to train a model (full, ZeRO, offload, LoRA, QLoRA) fit GPUs in memory, and what would make the
    others fit. `model` is a preset such as llama-3.1-8b, `gpu` a type such as RTX3090."""
    return _answered(sized, sizing_answer, model, gpu, gpus, nodes, seq_len)


def plan_training(
    model: str,
    cluster: str,
    global_batch: int,
    seq_len: int,
    tokens: str | None = None,
    precision: str = "bf16",
    objective: str = "time",
    budget_dollars: float | None = None,
    deadline_hours: float | None = None,
    pins: list[str] | None = None,
) -> dict[str, Any]:
    """Find the best parallel strategy for a model on machines such as 8x8xH100-SXM. `tokens` of the whole run (300B,
    1.5T) gives hours and dollars; `objective` is time or cost; `pins` fix settings, e.g. ["tp=4,8", "pp=2"]."""
    request = PlanRequest(
        model=model,
        cluster=cluster,
        global_batch=global_batch,
        seq_len=seq_len,
        tokens=tokens,
        precision=precision,
        objective=objective,
        budget_dollars=budget_dollars,
        deadline_hours=deadline_hours,
        pins=tuple(pins or ()),
    )
    return _answered(planned, plan_answer, request)


def shop(
    model: str,
    gpus: list[str],
    tokens: str,
    global_batch: int = 1024,
    seq_len: int = 4096,
    deadline_hours: float | None = None,
    budget_dollars: float | None = None,
    on_demand_only: bool = True,
) -> dict[str, Any]:
    """Find which of the GPU types named to rent, and how many: the front of time, dollars and interruptions for
    training `tokens` (1T), the cheapest within the deadline and the fastest within the budget."""
    request = ShopRequest(
        model=model,
        gpus=tuple(gpus),
        tokens=tokens,
        global_batch=global_batch,
        seq_len=seq_len,
        on_demand_only=on_demand_only,
        deadline_hours=deadline_hours,
        budget_dollars=budget_dollars,
    )
    return _answered(shopped, shop_answer, request)


def export_plan(
    target: str, model: str, cluster: str, global_batch: int, seq_len: int, pins: list[str] | None = None
) -> dict[str, Any]:
    """Return the files that make a trainer run the best plan for the same request as `plan_training`. What the target
    cannot express comes back as errors, and a target that is not there with those that are."""
    return _answered(_exported, dict, target, _request(model, cluster, global_batch, seq_len, pins))


def compare(
    model: str, cluster: str, global_batch: int, seq_len: int, pins: list[str], others: list[str]
) -> dict[str, Any]:
    """Compare two strategies on the same machines: the best with the settings `pins`, and the best with `others`."""
    mine, other = (_request(model, cluster, global_batch, seq_len, degrees) for degrees in (pins, others))
    return _answered(_compared, dict, mine, other)


def diagnose(
    model: str,
    cluster: str,
    global_batch: int,
    seq_len: int,
    pins: list[str],
    step_seconds: float | None = None,
    log: str = "",
    framework: str = "megatron",
) -> dict[str, Any]:
    """Say why a training run is slow, or out of memory. `pins` are the settings that it runs with, e.g. ["tp=8",
    "pp=2", "micro_batch=1"]: what they leave open is taken as the best. `step_seconds` is what a step takes, `log`
    lines of its log: an out-of-memory message, or what NCCL prints with NCCL_DEBUG=INFO."""
    request = PlanRequest(
        model=model, cluster=cluster, global_batch=global_batch, seq_len=seq_len, pins=tuple(pins), framework=framework
    )
    return _answered(_diagnosed, diagnosis_answer, request, step_seconds, log)


def catalogue() -> dict[str, Any]:
    """List the models and GPU types that can be named."""
    return {"models": list(preset_names()), "gpus": list(gpus())}


def _exported(target: str, request: PlanRequest) -> Answer:
    exported = export(_best(request), target)
    return {"target": exported.target, "version": exported.version, "files": dict(exported.files)}


def _diagnosed(request: PlanRequest, step_seconds: float | None, log: str) -> Diagnosis:
    if len(log) > MOST_LOG_CHARACTERS:
        raise bad(
            "log", f"has {len(log):,} characters", f"at most {MOST_LOG_CHARACTERS:,}: the lines that tell something"
        )
    if step_seconds is not None and not 0.0 < step_seconds < float("inf"):
        raise bad("step_seconds", f"{step_seconds} is no time of a step", "seconds above 0")
    return diagnosed(
        Case(
            plan=_best(request),
            efficiency=default_efficiency(),
            step_seconds=step_seconds,
            signs=signs_of(log.splitlines(), "log"),
            out_of_memory=out_of_memory(log),
        )
    )


def _compared(mine: PlanRequest, other: PlanRequest) -> Answer:
    first, second = plan_figures(_best(mine)), plan_figures(_best(other))
    ratio = second["iteration_seconds"] / first["iteration_seconds"]
    return {"answer": f"the second takes {ratio:.3f} times as long", "first": first, "second": second}


def _request(model: str, cluster: str, global_batch: int, seq_len: int, pins: list[str] | None) -> PlanRequest:
    return PlanRequest(model=model, cluster=cluster, global_batch=global_batch, seq_len=seq_len, pins=tuple(pins or ()))


def _best(request: PlanRequest) -> Plan:
    """Return the best plan for a request. Raises SpecError with the reason where there is none."""
    ranking = planned(request, top=1)
    if ranking.infeasible is not None:
        hints = "; ".join(in_words(remedy) for remedy in ranking.infeasible.remedies)
        raise bad("plan", in_words(ranking.infeasible.reason), hints)
    return ranking.best
