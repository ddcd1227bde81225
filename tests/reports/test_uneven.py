"""Uneven FSDP in every form in which a plan is shown, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.running import run
from tests.cost.test_layered import MIXED, layered_plan

from shardwright import SpecError, load_plan, save
from shardwright.exporters.targets import TARGETS, export
from shardwright.plans.findings import Failure
from shardwright.plans.ranking import Baseline
from shardwright.reports.text.explain import kinds_text, kinds_words
from shardwright.reports.text.plans import plan_text
from shardwright.reports.text.strategy import degrees_words

UNEVEN = layered_plan(MIXED, [("A100-SXM-40", 4, 11, 6, 14), ("V100-SXM2", 4, 5, 2, 11)], waves=2)
EVEN = layered_plan(MIXED, [("A100-SXM-40", 4, 8, 2, 1), ("V100-SXM2", 4, 8, 2, 1)])


def test_a_plan_tells_both_shares_of_every_gpu() -> None:
    text = plan_text(UNEVEN, "Best plan", 120)
    assert "4 × A100-SXM-40: 11 rows in 6 micro-batches, 0.14 of the state" in text
    assert "4 × V100-SXM2: 5 rows in 2 micro-batches, 0.11 of the state" in text
    assert "64 rows in 2 waves" in text
    assert degrees_words(UNEVEN) == "uneven FSDP over 8 GPUs, rows 11 / 5, micro-batch up to 3"


def test_kinds_say_who_wins_and_by_how_much() -> None:
    kinds = (
        Baseline(rule="pipelines", plan=None, failure=Failure.DOES_NOT_FIT),
        Baseline(rule="uneven", plan=UNEVEN),
        Baseline(rule="even", plan=EVEN),
    )
    ratio = EVEN.iteration_seconds / UNEVEN.iteration_seconds
    assert f"({ratio:.2f}× as fast, 80% sure: " in kinds_words(kinds, UNEVEN)
    text = kinds_text(kinds, UNEVEN, 120)
    assert "pipelines: none fits" in text and f"{ratio - 1.0:+.1%}" in text
    assert kinds_text((), UNEVEN, 120) == ""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    save(UNEVEN, path)
    return path


def test_the_commands_take_it(file: Path, tmp_path: Path) -> None:
    assert load_plan(file) == UNEVEN
    assert run(["check", str(file)]).code == 0
    page, picture = tmp_path / "page.html", tmp_path / "steps.svg"
    assert run(["report", str(file), "-o", str(page)]).code == 0
    assert "0.14 of the state" in page.read_text(encoding="utf-8")
    assert run(["draw", str(file), "-o", str(picture)]).code == 0
    assert "4 × 11 rows, 6 micro-batches" in picture.read_text(encoding="utf-8")
    assert "runs each unit" in page.read_text(encoding="utf-8") and '["wave","unit"]' in page.read_text("utf-8")
    shown = run(["train", str(file), "--dry-run"])
    assert "keeps      14 of 100 parts" in shown.out and "6 micro-batches of 2 and 1" in shown.out


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"perfetto", "kubernetes", "skypilot"}))
def test_frameworks_that_cannot_run_it_refuse_it(target: str) -> None:
    with pytest.raises(SpecError, match=r"replicas|uneven FSDP"):
        export(UNEVEN, target)
