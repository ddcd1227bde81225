"""Varied plans for Megatron-LM: what a search finds for many models, GPUs, lengths and precisions, for the parser and the
rules of run time. `python -m tests.targets.varied` puts them through both and writes docs/megatron-exports.md.
"""

from __future__ import annotations

import csv
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.targets.megatron_rules import RULES, line_of
from tests.targets.run_megatron import SOURCES, case_of, checked, require_megatron

import shardwright
from shardwright import Plan, SpecError, to_megatron
from shardwright.files import write_atomically
from shardwright.reports.words import in_words
from shardwright.search.space.axes import parse_pins

PAGE = Path(__file__).parents[2] / "docs" / "megatron-exports.md"
BEFORE = Path(__file__).with_name("before.csv")  # of an older commit: tests.targets.before
H100, A100, V100, MI300X, B200 = "H100-SXM", "A100-SXM-80", "V100-SXM2", "MI300X", "B200"


@dataclass(frozen=True, slots=True)
class Question:
    """A model on machines, with the length, the batch, the precision, and what is pinned."""

    model: str
    cluster: str
    seq_len: int = 4096
    batch: int = 128
    precision: str = "bf16"
    recipe: str | None = None
    pins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        parts = (self.model, self.cluster, f"{self.seq_len}", self.precision, self.recipe or "", *self.pins)
        return " ".join(part for part in parts if part)


QUESTIONS = (
    # dense models of several families
    Question("llama-3.1-8b", f"4x8x{H100}"),
    Question("llama-3.1-70b", f"16x8x{H100}", 8192),
    Question("llama-3.1-405b", f"64x8x{H100}", 8192, 256),
    Question("llama-2-70b", f"16x8x{A100}", pins=("vpp=2", "pp=4")),
    Question("qwen2.5-32b", f"8x8x{A100}"),
    Question("qwen3-8b", f"2x8x{A100}"),
    Question("gpt3-175b", f"32x8x{A100}", 2048, 256),
    Question("opt-66b", f"8x8x{A100}", 2048),
    Question("pythia-12b", f"2x8x{A100}", 2048),
    Question("bert-large", f"1x8x{A100}", 512),
    Question("bloom-7.1b", f"2x8x{A100}", 2048),
    Question("falcon-40b", f"4x8x{A100}", 2048),
    Question("gemma-2-9b", f"2x8x{H100}"),
    Question("phi-4", f"2x8x{H100}"),
    Question("nemotron-4-15b", f"4x8x{H100}"),
    Question("starcoder2-15b", f"4x8x{A100}", 16384, pins=("cp=2",)),
    # latent attention and experts
    Question("deepseek-v2-lite", f"2x8x{H100}"),
    Question("deepseek-v2", f"16x8x{H100}"),
    Question("deepseek-v3", f"64x8x{H100}", batch=1024),
    Question("deepseek-v3", f"64x8x{H100}", 4096, 1024, "fp8", "blockwise"),
    Question("deepseek-v2-lite", f"2x8x{H100}", 32768, 32, pins=("cp=4",)),
    Question("kimi-k2", f"128x8x{H100}", batch=1024),
    Question("mixtral-8x7b", f"8x8x{H100}"),
    Question("mixtral-8x22b", f"16x8x{A100}", pins=("etp=2", "tp=2")),
    Question("qwen3-30b-a3b", f"4x8x{H100}"),
    Question("qwen3-235b-a22b", f"32x8x{H100}", batch=512),
    Question("qwen2-57b-a14b", f"8x8x{A100}"),
    Question("glm-4.5-air", f"16x8x{H100}"),
    # windows and long samples
    Question("mistral-7b", f"2x8x{A100}", 8192),
    Question("mistral-7b", f"4x8x{A100}", 32768, 32, pins=("cp=4",)),
    Question("mistral-7b", f"4x8x{A100}", 32768, 32, pins=("cp=4", "tp=4")),
    Question("gemma-3-12b", f"4x8x{H100}", 32768, 32),
    Question("llama-3.1-8b", f"8x8x{H100}", 131072, 16),
    Question("llama-3.1-70b", f"32x8x{H100}", 131072, 32),
    Question("qwen2.5-7b", f"8x8x{A100}", 131072, 16),
    # eight bits
    Question("llama-3.1-8b", f"4x8x{H100}", precision="fp8", recipe="delayed"),
    Question("llama-3.1-8b", f"4x8x{H100}", precision="fp8", recipe="tensorwise"),
    Question("llama-3.1-70b", f"16x8x{H100}", precision="fp8", recipe="blockwise"),
    Question("llama-3.1-70b", f"8x8x{B200}", precision="fp8", recipe="mxfp8"),
    Question("qwen3-30b-a3b", f"4x8x{B200}", precision="fp8", recipe="mxfp8"),
    Question("llama-3.1-8b", "2x8xRTX5090", precision="fp8", recipe="mxfp8"),
    # older, smaller and other GPUs
    Question("llama-2-7b", f"4x8x{V100}", 2048, precision="fp16"),
    Question("gpt2-xl", f"2x8x{V100}", 1024, precision="fp32"),
    Question("llama-2-7b", f"4x8x{V100}", 8192, 32, "fp16"),
    Question("opt-1.3b", "2x8xT4", 2048, precision="fp16"),
    Question("llama-3.2-3b", "1x8xRTX4090"),
    Question("llama-2-13b", "4x8xL40S"),
    Question("llama-3.1-8b", f"2x8x{MI300X}", 8192),
    Question("llama-3.1-70b", f"8x8x{MI300X}", 8192),
    Question("mixtral-8x7b", f"4x8x{MI300X}"),
    # what is sharded, offloaded, recomputed
    Question("llama-3.1-8b", f"4x8x{H100}", pins=("sharding=zero3",)),
    Question("llama-3.1-70b", f"8x8x{A100}", pins=("sharding=zero2", "pp=1")),
    Question("llama-2-70b", f"4x8x{A100}", pins=("offload=0.5",)),
    Question("llama-2-13b", f"2x8x{A100}", 16384, pins=("recompute=uniform",)),
    # several GPU types in one mesh
    Question("llama-3.1-70b", f"8x8x{H100}+16x8x{A100}", 8192, 512),
    Question("llama-2-13b", f"2x8x{A100}+4x8x{V100}", 2048, precision="fp16"),
    Question("mixtral-8x7b", f"4x8x{H100}+4x8x{A100}"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The plan of a question, or why there is none; `refused` is by the search or by the export."""

    question: Question
    plan: Plan | None
    refused: str = ""


@cache
def answers() -> tuple[Answer, ...]:
    """Return the best plan of every question, of those that Megatron-LM can be told."""
    return tuple(map(_answer, QUESTIONS))


def _answer(question: Question) -> Answer:
    model, cluster = shardwright.load_model(question.model), shardwright.load_cluster(question.cluster)
    job = shardwright.make_job(
        global_batch=question.batch,
        seq_len=question.seq_len,
        precision=question.precision,  # type: ignore[arg-type]
        fp8_recipe=question.recipe,
    )
    try:
        found = shardwright.plan(model, cluster, job, space=parse_pins(question.pins), exportable_to="megatron")
        if not found.plans:
            assert found.infeasible is not None
            return Answer(question, None, in_words(found.infeasible.reason))
        to_megatron(found.best)
    except SpecError as error:
        return Answer(question, None, str(error.problems[0]))
    return Answer(question, found.best)


def results() -> dict[str, dict[str, Any]]:
    """Return what Megatron-LM's code and the rules say of every export, by the name of its question."""
    require_megatron()
    return checked([case_of(each.question.name, each.plan) for each in answers() if each.plan is not None])


def page(found: dict[str, dict[str, Any]]) -> str:
    """Return the page of documentation."""
    rows = list(answers())
    outcomes = Counter(_outcome(each, found) for each in rows)
    words = "; ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    commit, earlier = before()
    kinds = Counter(said if said in ("starts", "refused") else "accepted, would not start" for said in earlier.values())
    then = "; ".join(f"{count} {kind}" for kind, count in kinds.items())
    head = (
        f"{len(rows)} varied questions, each planned with `--exportable-to megatron` and exported: {words}. Accepted means "
        "that the parser, the validation and the configuration builder of core_v0.19.2 take every argument, for the "
        "capability of the plan's own GPUs, and make the plan's own values of them; that it starts, that none of the rules "
        "below is broken. Nothing was run. Made by `python -m tests.targets.varied`. The last column is commit "
        f"{commit}, before these rules, through the same check (`python -m tests.targets.before {commit}`): {then}."
    )
    lines = [
        "# What is exported to Megatron-LM starts",
        "",
        textwrap.fill(head, 120),
        "",
        "| model | GPUs | tokens | precision | pinned | plan | Megatron-LM | before |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(each, found, earlier[each.question.name]) for each in rows),
        "",
        "## Rules of run time",
        "",
        "What the parser does not see. Files of Transformer Engine 2.8.0 and Megatron-LM core_v0.19.2, as in their wheels.",
        "",
        "| rule | from | line |",
        "|---|---|---|",
        *(f"| {rule.name} | `{rule.file}` | {line_of(rule, SOURCES)} |" for rule in RULES),
    ]
    return "\n".join(lines) + "\n"


def _outcome(answer: Answer, found: dict[str, dict[str, Any]]) -> str:
    if answer.plan is None:
        return "refused by name"
    result = found[answer.question.name]
    if result.get("error"):
        return "not accepted"
    return "accepted, would not start" if result["broken"] else "accepted and start"


def before() -> tuple[str, dict[str, str]]:
    """Return an older commit, and what became of each question there."""
    head, *rows = csv.reader(BEFORE.read_text(encoding="utf-8").splitlines())
    return head[1], {row[0]: row[1] for row in rows}


def _row(answer: Answer, found: dict[str, dict[str, Any]], then: str) -> str:
    question = answer.question
    if answer.plan is None:
        shown, said = "", f"refused: {answer.refused.splitlines()[0]}"
    else:
        result = found[question.name]
        shown = _degrees(answer.plan)
        said = result.get("error") or "; ".join(result["broken"]) or "starts"
    precision = f"{question.precision} {question.recipe or ''}".strip()
    cells = (
        question.model,
        question.cluster,
        f"{question.seq_len:,}",
        precision,
        " ".join(question.pins),
        shown,
        said,
        then,
    )
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _degrees(plan: Plan) -> str:
    return ", ".join(_parts(plan))


def _parts(plan: Plan) -> Iterator[str]:
    stage = plan.stages[0]
    degrees: Sequence[tuple[str, int]] = (
        ("tp", stage.tensor_parallel),
        ("cp", stage.context_parallel),
        ("pp", len(plan.replicas[0].stages)),
        ("ep", stage.expert_parallel),
        ("dp", plan.data_parallel),
        ("vpp", plan.schedule.virtual_stages),
    )
    yield from (f"{name} {degree}" for name, degree in degrees if degree > 1)
    if plan.optimizer.sharding in ("zero2", "zero3"):
        yield plan.optimizer.sharding
    if not plan.flash_attention:
        yield "unfused"


if __name__ == "__main__":
    write_atomically(PAGE, page(results()))
