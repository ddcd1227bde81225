"""How far a generation is, and the step that survivors reach: all the same, whenever in a step each was halted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardwright.runtime.recovery.fleet.observations import GenerationProgress
from shardwright.runtime.recovery.run import Report, reaches, settle

VOTE = (2.5, 1.0, 0.0)
BEFORE_VOTE = Report(step=7, vote_step=6, vote=(3.0, 1.0, 0.0))
IN_VOTE = Report(step=7, voted=True, vote_step=6, vote=(3.0, 1.0, 0.0))
OUTCOME_KNOWN = Report(step=7, voted=True, vote_step=7, vote=VOTE)
UPDATED = Report(step=8, vote_step=7, vote=VOTE)


@given(st.lists(st.sampled_from([IN_VOTE, OUTCOME_KNOWN, UPDATED]), min_size=1))
def test_once_one_knows_the_outcome_all_update(reports: list[Report]) -> None:
    """A rank knows the outcome only after all have voted, so nobody is before the vote."""
    found = settle(reports)
    assert found.step == (7 if all(report == IN_VOTE for report in reports) else 8)
    assert all(reaches(report, found) for report in reports)
    assert found.step == 7 or found.vote == VOTE


@given(st.lists(st.sampled_from([BEFORE_VOTE, IN_VOTE]), min_size=1))
def test_before_anybody_knows_it_nobody_has_updated(reports: list[Report]) -> None:
    found = settle(reports)
    assert found.step == 7 and all(reaches(report, found) for report in reports)


def test_a_rank_without_a_state_does_not_reach_the_step() -> None:
    assert not reaches(Report(step=-1), settle([UPDATED]))
    assert settle([]).step == -1


def test_a_step_is_there_once_all_machines_that_have_a_rank_have_it() -> None:
    """A machine that the plan has no rank for never has one, and is not waited for."""
    progress = GenerationProgress(ranks=2, machines=frozenset(("m0", "m1")))
    assert not progress.take("m0", 5)
    assert progress.take("m1", 5)
    progress.finished.update((("m0", 0), ("m1", 0)))
    found = [(progress.take(name, 10), progress.over) for name in ("m1", "m0")]
    assert found == [(False, False), (True, True)]
    assert list(progress.held) == [10]
