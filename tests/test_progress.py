"""What work tells of its progress: a share of the whole, never less than before, the same result with and without."""

from __future__ import annotations

import pytest

import shardwright
from shardwright.cli.output import progress_line
from shardwright.plans.document import dumps
from shardwright.progress import heard, tell, within


def test_parts_of_a_part_are_shares_of_the_whole() -> None:
    told: list[float] = []
    with heard(told.append):
        with within(0.0, 0.5):
            tell(0.5)
            with within(0.5, 1.0):
                tell(0.5)
        with within(0.5, 1.0):
            tell(2.0)
        tell(1.0)
    assert told == [0.25, 0.375, 0.5, 0.5, 1.0, 1.0, 1.0]
    tell(0.5)
    with within(0.0, 1.0):
        tell(0.5)
    assert len(told) == 7  # no one listens any more


@pytest.mark.parametrize("cluster", ["2x8xA100-SXM-40", "1x8xA100-SXM-40+2x8xV100-SXM2"])
def test_a_search_tells_how_far_it_is_and_finds_the_same(cluster: str) -> None:
    model, machines = shardwright.load_model("gpt2-medium"), shardwright.load_cluster(cluster)
    job = shardwright.make_job(global_batch=64, seq_len=1024, precision="fp16")
    told: list[float] = []
    with heard(told.append):
        found = shardwright.plan(model, machines, job)
    assert told == sorted(told) and told[0] < 0.5 and told[-1] == 1.0
    assert dumps(found.best) == dumps(shardwright.plan(model, machines, job).best)


def test_the_line_says_for_how_long_and_how_much_longer() -> None:
    assert progress_line("searching", 3.2, 0.0) == "searching, 3 s …"
    assert progress_line("searching", 10.0, 0.25) == "searching, 10 s, at most 30 s left"
    assert progress_line("searching", 100.0, 0.05) == "searching, 100 s, at most 32 min left"
    assert progress_line("searching", 1000.0, 0.02) == "searching, 1000 s, at most 13.6 h left"
