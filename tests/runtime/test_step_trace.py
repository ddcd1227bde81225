"""The trace of a real run: every pass of every rank once, in order, with the operators inside, beside the predicted."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import refused, run
from tests.runtime.commands import PAIR, make_folder, run_ranks

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = make_folder(tmp_path_factory.mktemp("trace"))
    file = folder / "trace.json"
    arguments = ("--data", folder / "c.bin", "--steps", 3, "--out", folder / "run", "--trace", file)
    done = run_ranks(1, 2, folder / "pair.json", *arguments)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(file.read_text(encoding="utf-8")))


def names(trace: dict[str, Any], what: str) -> dict[tuple[int, int], str]:
    return {
        (event["pid"], event.get("tid", 0)): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["ph"] == "M" and event["name"] == f"{what}_name"
    }


def of_process(trace: dict[str, Any], words: str) -> dict[int, Events]:
    """Return the events of the processes whose names begin with some words, by thread."""
    chosen = {pid for (pid, _), name in names(trace, "process").items() if name.startswith(words)}
    found: dict[int, Events] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] in chosen:
            found[event["tid"]].append(event)
    return found


def test_every_pass_of_every_rank_is_there_once_and_none_overlap(trace: dict[str, Any]) -> None:
    ranks = of_process(trace, "measured")
    assert sorted(ranks) == [0, 1]
    for events in ranks.values():
        passes = [event for event in events if event["cat"] in ("forward", "backward")]
        micro_batches = range(PAIR.replicas[0].micro_batches)
        assert sorted((event["cat"], event["args"]["micro_batch"]) for event in passes) == sorted(
            itertools.product(("forward", "backward"), micro_batches)
        )
        spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["cat"] != "operator")
        assert all(one[1] <= other[0] + 1.0 for one, other in itertools.pairwise(spans))  # microseconds


def test_a_stage_begins_after_the_one_before_it(trace: dict[str, Any]) -> None:
    first, second = (
        {event["name"]: event for event in events if event["cat"] == "forward"}
        for _, events in sorted(of_process(trace, "measured").items())
    )
    for name, event in second.items():
        # To a millisecond, between the clocks of two processes. A rank may be halted when it has sent its output, before
        # it notes that it is done: so that end says nothing.
        assert event["ts"] + 1e3 >= first[name]["ts"]


def test_operators_lie_inside_the_step(trace: dict[str, Any]) -> None:
    end = max(event["ts"] + event["dur"] for events in of_process(trace, "measured").values() for event in events)
    for rank in (0, 1):
        operators = [event for events in of_process(trace, f"operators of rank {rank}").values() for event in events]
        assert any("mm" in event["name"] for event in operators)
        assert all(event["ts"] >= 0 and event["ts"] + event["dur"] <= 1.1 * end + 1e5 for event in operators)


def test_the_predicted_step_stands_beside_it(trace: dict[str, Any], tmp_path: Path) -> None:
    stages = of_process(trace, "predicted")
    assert sorted(stages) == [0, 1]
    kinds = {event["cat"] for events in stages.values() for event in events}
    assert {"forward", "backward", "optimizer"} <= kinds


def test_a_trace_that_could_not_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    told = ["train", folder / "single.json", "--data", folder / "c.bin", "--trace", folder / "none" / "a.json"]
    words = refused(run(list(map(str, told))))
    assert "--trace" in words and "does not exist" in words
