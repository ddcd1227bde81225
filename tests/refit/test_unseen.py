"""Runs that no constant has seen: none of their publishers is in the tables of the fit, and the page says what is
predicted now."""

from __future__ import annotations

import pytest
from tests.nightly import nightly
from tools.refit.unseen import PAGE, predicted, unseen_page, unseen_runs

from shardwright.validation.runs import published_runs

# The rest of what was measured on these machines is in no table: other people published it.
SOME = ("Llama 70B, FSDP 16, 16 H200", "Hy3, 64 GB300, TE graphs", "Llama 13B, 8 H200, tp 1, FSDP 8")


def test_no_publisher_is_in_the_tables_that_constants_are_fitted_to() -> None:
    seen = {run.source_file.split("@")[0].split(":")[0] for run in published_runs()}
    assert not seen & {row["where"].split("@")[0].split(",")[0] for row in unseen_runs()}


@pytest.mark.parametrize("name", SOME)
def test_the_page_has_what_is_predicted(name: str) -> None:
    (row,) = [row for row in unseen_runs() if row["name"] == name]
    run = predicted(row)
    (line,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |")]
    assert f"| {run.ratio:.2f} |" in line
    assert f"| {run.memory_ratio or 0:.2f} |" in line or run.memory is None


@pytest.mark.parametrize("times", nightly([1]))
def test_the_page_is_what_its_command_writes(times: int) -> None:
    assert PAGE.read_text(encoding="utf-8") == unseen_page([predicted(row) for row in unseen_runs()])
