"""Presets × frameworks × clusters, drawn pairwise: what `plan` names as the next command starts, or nobody is named.

`taken.csv` has the cells whose plan the framework's own trainer took before the search knew what trainers run: none of
them is lost.
"""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import pytest
from tests.cli.running import Outcome, run
from tests.nightly import nightly
from tests.support.cells import BATCH, LONGEST, Cell, drawn

import shardwright

TAKEN = Path(__file__).with_name("taken.csv")
A_NIGHT = drawn(600)
LONG = ("glm-4.5", "jamba-1.5-large", "llama-3.1-405b")  # their cells take ten to thirty seconds each
EVERY_RUN = [cell for cell in A_NIGHT if cell.cluster.startswith("1x") and cell.model not in LONG][:6]


def asked(cell: Cell, file: Path) -> Outcome:
    """Return what the command line answers for a cell; the plan is in `file`, where there is one."""
    length = min(LONGEST, shardwright.load_model(cell.model).max_position or LONGEST)
    words = ["plan", "--model", cell.model, "--cluster", cell.cluster, "--framework", cell.framework, "--top", "1"]
    return run([*words, "--global-batch", str(BATCH), "--seq-len", str(length), "--out", str(file)])


def next_command(out: str) -> list[str]:
    """Return the words of the command that a first screen names as the next, none where it names nobody."""
    after = out[out.index("\n  next ") :].split("\n  more ")[0]
    words = shlex.split(after.replace("`", " "))[1:]
    return words[1:] if words[0] == "shardwright" else []


@pytest.mark.parametrize(
    "cell", [*EVERY_RUN, *nightly(cell for cell in A_NIGHT if cell not in EVERY_RUN)], ids=lambda cell: cell.name
)
def test_the_next_command_starts(cell: Cell, tmp_path: Path) -> None:
    done = asked(cell, tmp_path / "plan.json")
    if done.code == 3:
        assert "No plan" in done.out
        return
    assert done.code == 0, done
    words = next_command(done.out)
    if not words:
        assert done.out.startswith("no trainer for") and "nobody that we know runs this plan" in " ".join(
            done.out.split()
        )
        return
    if words[0] == "train":
        started = run(["train", words[1], "--dry-run"])
    else:
        place = words.index("-o") + 1
        started = run([*words[:place], str(tmp_path / words[place])])
    assert started.code == 0, started


def taken() -> list[Cell]:
    """Return the cells whose plan was taken before."""
    return [Cell(*row) for row in list(csv.reader(TAKEN.read_text(encoding="utf-8").splitlines()))[1:]]


@pytest.mark.parametrize("cell", nightly(taken()), ids=lambda cell: cell.name)
def test_no_cell_that_was_taken_is_lost(cell: Cell, tmp_path: Path) -> None:
    done = asked(cell, tmp_path / "plan.json")
    assert done.code == 0 and next_command(done.out), done
