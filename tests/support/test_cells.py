"""Presets × frameworks × clusters, drawn pairwise: what `plan` names as the next command starts, and the files that it
writes are read back by the command in them; or those are named who run the model.

`taken.csv` has the cells whose plan the framework's own trainer took before the search knew what trainers run: none of
them is lost. Two of 146 are no longer among them, nemotron-4-340b and glm-4.5 on 16 MI300X: with the gradients that an
update in host memory reads, their state is beyond what the hosts have.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.cli.running import Outcome, run
from tests.nightly import nightly
from tests.support.cells import BATCH, LONGEST, SHORTEST_WITH_IMAGES, Cell, drawn
from tests.support.following import followed, next_command

import shardwright

TAKEN = Path(__file__).with_name("taken.csv")
A_NIGHT = drawn(600)
SMALL = ("1x8xH100-SXM", "1x2xRTX4090", "1x(2xRTX4090+1xRTX3090)")  # on which a cell takes a second or two
EVERY_RUN = [cell for cell in A_NIGHT if cell.cluster in SMALL][:12]


def asked(cell: Cell, file: Path) -> Outcome:
    """Return what the command line answers for a cell; the plan is in `file`, where there is one."""
    model = shardwright.load_model(cell.model)
    length = min(SHORTEST_WITH_IMAGES if model.towers else LONGEST, model.max_position or LONGEST)
    words = ["plan", "--model", cell.model, "--cluster", cell.cluster, "--top", "1", "--out", str(file)]
    words += ["--framework", cell.framework] if cell.framework else []
    words += ["--precision", "fp16"] if "V100" in cell.cluster else []
    return run([*words, "--global-batch", str(BATCH), "--seq-len", str(length)])


@pytest.mark.parametrize(
    "cell", [*EVERY_RUN, *nightly(cell for cell in A_NIGHT if cell not in EVERY_RUN)], ids=lambda cell: cell.name
)
def test_the_next_command_starts(cell: Cell, tmp_path: Path) -> None:
    done = asked(cell, tmp_path / "plan.json")
    if done.code == 3 and not done.out.startswith("no trainer for"):
        assert "No plan: " in done.out
        return
    words = " ".join(done.out.split("\n\n")[0].split())
    assert done.code == (3 if words.startswith("no trainer for") else 0), done
    if done.code == 3 and not next_command(done.out):
        assert words.endswith(("nor does any other", "`shardwright spmd` can")), words
        return
    answers = list(followed(done.out, tmp_path))
    if done.code == 3:
        ((command, answer),) = answers
        assert command[0] == "plan" and ("No plan: " in answer.out if answer.code == 3 else answer.code == 0), answers
        assert "these would run it: " in words
        return
    assert [answer for _, answer in answers if answer.code != 0] == []
    assert [command[0] for command, _ in answers] in (["train"], ["export", "evaluate"])


def taken() -> list[Cell]:
    """Return the cells whose plan was taken before."""
    return [Cell(*row) for row in list(csv.reader(TAKEN.read_text(encoding="utf-8").splitlines()))[1:]]


@pytest.mark.parametrize("cell", nightly(taken()), ids=lambda cell: cell.name)
def test_no_cell_that_was_taken_is_lost(cell: Cell, tmp_path: Path) -> None:
    done = asked(cell, tmp_path / "plan.json")
    assert done.code == 0 and next_command(done.out), done
