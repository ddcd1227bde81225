"""Every finding has words of its own, and so has what of a plan was never measured."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

import pytest
from tests.golden.plans import PLANS, uniform_plan

from shardwright import Job, load_cluster, load_model, make_job
from shardwright.cost.trust.evidence import LACKS
from shardwright.plans import findings
from shardwright.plans.plan import Precedents, Recompute, Unmeasured
from shardwright.reports.text.first_screen import first_screen
from shardwright.reports.text.mixed import replica_words
from shardwright.reports.text.outcome import UNMEASURED, measured_words
from shardwright.reports.text.strategy import degrees_words
from shardwright.reports.words import flagged, in_words
from shardwright.search.planner import plan
from shardwright.spec.options import Options

PARTS = (findings.JobLimits, findings.Need, findings.Rejection)  # of findings, or made of each cause
SAMPLES: dict[object, object] = {
    int: 3,
    float: 2.5e12,
    str: "H200",
    tuple[str, ...]: ("a", "b"),
    tuple[findings.Need, ...]: (),
}


def every_finding() -> Iterator[object]:
    for kind in vars(findings).values():
        if isinstance(kind, type) and issubclass(kind, Enum) and kind is not Enum:
            yield from kind if kind is not findings.Cause else map(findings.Rejection, findings.Cause)
        elif hasattr(kind, "__dataclass_fields__") and kind not in PARTS:
            yield kind(**{name: sample(hint) for name, hint in typing.get_type_hints(kind).items()})


def sample(hint: object) -> object:
    """Return a value of a field's type."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union, typing.Literal):
        first = typing.get_args(hint)[0]
        return first if typing.get_origin(hint) is typing.Literal else sample(first)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    if hint is findings.JobLimits:
        return findings.JobLimits(deadline_hours=3.0, budget_dollars=100.0)
    return SAMPLES.get(hint, ())


@pytest.mark.parametrize("finding", list(every_finding()), ids=repr)
def test_a_finding_has_words(finding):
    assert in_words(finding).strip()
    assert "object at" not in in_words(finding)


def test_no_two_findings_have_the_same_words():
    said = [in_words(finding) for finding in every_finding()]
    assert len(set(said)) == len(said)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("`fit=`", "--fit"),
        ("`exportable_to=`", "--exportable-to"),
        ("plan with `seq_len=2048`, or measure again", "plan with --seq-len 2048, or measure again"),
        ("`set=tp=8`", "--set tp=8"),
        ("leave them out: `links=False`", "leave them out: --no-links"),
        ("`debug=True` shows more", "--debug shows more"),
        ("see `nvidia-smi`", "see `nvidia-smi`"),
    ],
)
def test_arguments_of_the_library_are_flags_of_the_command_line(text, words):
    assert flagged(text) == words


def test_whether_the_like_was_measured_is_said_before_the_speed() -> None:
    """A known kind with its runs; then another GPU, another framework, another kind, each by its name."""
    task = make_job(global_batch=64, seq_len=4096)
    known = plan(load_model("llama-3.1-8b"), load_cluster("1x8xH100-SXM"), task).best
    measured = known.predicted.measured
    assert measured is not None and not measured.lacking
    assert measured_words(measured).startswith(f"{measured.runs:,} published runs of dense models")
    names = [
        line.split()[0] for line in first_screen(plan(known.model, known.cluster, task)).splitlines() if line[2:3] > " "
    ]
    assert names.index("measured") < names.index("speed")
    home = plan(load_model("qwen2.5-7b"), load_cluster("1x4xRTX3090"), task).best
    assert home.predicted.measured is not None
    assert "no published run has the RTX3090" in measured_words(home.predicted.measured)
    mixed = Precedents(
        kind="mixed",
        runs=0,
        at_scale=0,
        lacking=(
            Unmeasured(fact="framework_kind", of=("megatron", "mixed")),
            Unmeasured(fact="gpus", of=("megatron", "11616")),
            Unmeasured(fact="sites", of=("2",)),
        ),
        record=None,
    )
    words = "no published run has several GPU types with megatron, megatron on more than 11,616 GPUs or 2 sites"
    assert measured_words(mixed) == words
    assert set(LACKS) == set(UNMEASURED)


def test_a_utilisation_above_the_record_of_its_class_is_doubted() -> None:
    """Free choice on Ampere promises more than the 56 % that a model of over 20 B parameters ever reached."""
    task = make_job(global_batch=1024, seq_len=4096)
    ranking = plan(load_model("llama-2-70b"), load_cluster("8x8xA100-SXM-80"), task)
    prediction = ranking.best.predicted
    assert prediction.measured is not None and prediction.measured.record is not None
    assert 0.5 < prediction.measured.record.mfu < 0.6 < prediction.mfu
    assert "is above the record of its class: 56.1%, MPT-30b" in " ".join(first_screen(ranking).split())


@pytest.mark.parametrize(
    ("framework", "options", "offload", "there"),
    [
        ("deepspeed", Options(), 0.0, set()), ("deepspeed", Options(), 1.0, {"optimizer"}),
        ("deepspeed", Options(weight_offload="host"), 0.0, {"weights"}),
        ("deepspeed", Options(weight_offload="host"), 1.0, {"weights", "optimizer"}),
        ("fsdp", Options(), 0.0, set()), ("fsdp", Options(), 1.0, {"weights", "optimizer"}),
    ],
)  # fmt: skip
def test_the_degrees_name_what_is_in_host_memory(
    framework: str, options: Options, offload: float, there: set[str]
) -> None:
    job = Job(global_batch=16, seq_len=1024, framework=framework, options=options)
    model = load_model("llama-3.2-1b")
    plan = uniform_plan(model, nodes=1, job=job, micro_batch=2, tp=1, counts=(16,), sharding="zero3", offload=offload)
    words = degrees_words(plan)
    assert {name for name in ("weights", "optimizer") if name in words} == there
    assert ("host memory" in words) == bool(there)


@pytest.mark.parametrize(
    ("recompute", "words"),
    [
        (Recompute(), ""),
        (Recompute(granularity="selective"), "(selective)"),
        (Recompute(granularity="full", method="uniform", layers=1), "(all recomputed)"),
        (Recompute(granularity="full", method="uniform", layers=4), "(all recomputed, in groups of 4)"),
        (Recompute(granularity="full", method="block", layers=1), "(1 recomputed)"),
        (Recompute(granularity="full", method="block", layers=9), "(9 recomputed)"),
    ],
)
def test_the_layers_that_are_recomputed_are_those_of_the_method(recompute: Recompute, words: str) -> None:
    """Megatron-LM's `uniform` recomputes every layer, however large its groups, `block` so many."""
    replica = PLANS["llama-2-70b-interleaved"].replicas[0]
    stages = tuple(replace(stage, recompute=recompute) for stage in replica.stages)
    text = replica_words(replace(replica, stages=stages))
    assert f"layers {words}".strip() in text and ("recomputed" in text) is ("recomputed" in words)
