"""Plans rehearsed in torchtitan 0.3, in this environment or that of SHARDWRIGHT_TORCHTITAN_PYTHON
(tests/targets/targets.sh makes one).
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from dataclasses import replace

import pytest
from tests.rehearsal.tiny import require_guard

import shardwright
from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.rehearsal.document import messages
from shardwright.rehearsal.rehearse import asked, ranks_of, rehearse
from shardwright.rehearsal.trainers import question_of, trainer_of
from shardwright.search.space.axes import parse_pins

PYTHON = os.environ.get("SHARDWRIGHT_TORCHTITAN_PYTHON", "")
HERE = importlib.util.find_spec("torchtitan") is not None
PLAIN = "tp=1 cp=1 pp=1 micro_batch=1 recompute=none sharding=zero3"


def plan_of(pins: str = PLAIN, *, model: str = "qwen3-0.6b", length: int = 2048, batch: int = 8) -> Plan:
    job = shardwright.make_job(global_batch=batch, seq_len=length, framework="torchtitan")
    space, cluster = parse_pins(pins.split()), shardwright.load_cluster("1x8xH100-SXM")
    return shardwright.plan(shardwright.load_model(model), cluster, job, space=space, top=1).best


def test_its_process_is_told_the_file_that_is_exported() -> None:
    plan = plan_of(f"{PLAIN} loss=chunked")
    assert trainer_of(plan, None) == "torchtitan"
    question = question_of(plan, "torchtitan", ranks_of(plan)[0])
    tree = ast.parse(question["file"])
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == ["plan"]
    assert "ChunkedLossWrapper.Config(" in question["file"]
    assert "ChunkedLossWrapper" not in question_of(plan_of(), "torchtitan", ranks_of(plan)[0])["file"]


@pytest.mark.parametrize("change", [{"precision": "fp8", "fp8_recipe": "tensorwise"}, {"optimizer": "muon"}])
def test_other_plans_are_refused(change: dict[str, str]) -> None:
    plan = plan_of()
    with pytest.raises(SpecError):
        trainer_of(replace(plan, job=replace(plan.job, **change)), "torchtitan")


def test_without_torchtitan_it_says_what_to_install() -> None:
    require_guard()
    if HERE:
        pytest.skip("torchtitan is installed here")
    question = question_of(plan := plan_of(), "torchtitan", ranks_of(plan)[0])
    with pytest.raises(SpecError, match=r"torchtitan: is not installed .*targets.sh makes an environment"):
        asked(question, python=sys.executable, seconds=300.0, limit_bytes=8e9)


@pytest.mark.parametrize(
    ("pins", "model", "length", "batch", "rank"),
    [
        (PLAIN, "qwen3-0.6b", 2048, 8, 0),
        (f"{PLAIN} loss=chunked", "llama-3.2-1b", 4096, 8, 0),
        (
            "tp=1 cp=2 pp=1 micro_batch=1 recompute=uniform recompute_layers=1 sharding=zero3",
            "llama-3.2-1b",
            4096,
            4,
            0,
        ),
        ("tp=1 cp=1 pp=4 vpp=1 micro_batch=1 recompute=none", "llama-3-8b", 1024, 8, 0),
    ],
)
def test_the_account_agrees_with_torchtitan(pins: str, model: str, length: int, batch: int, rank: int) -> None:
    require_guard()
    if not (PYTHON or HERE):
        pytest.skip("SHARDWRIGHT_TORCHTITAN_PYTHON names no interpreter with torchtitan 0.3 (tests/targets/targets.sh)")
    plan = plan_of(pins, model=model, length=length, batch=batch)
    (played,) = rehearse(plan, rank=[rank], python=PYTHON or None).ranks
    assert abs(played.difference) < 0.03
    assert played.figures["flops"] == pytest.approx(played.expected.flops, rel=0.005)
    between = [message for message in messages(played) if message["purpose"] == "stages"]
    assert all(message["bytes"] == message["expected_bytes"] for message in between)
