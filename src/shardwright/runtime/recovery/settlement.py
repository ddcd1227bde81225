"""On which step the survivors of a loss are, and how those that are behind catch up. Needs no PyTorch.

A step ends with a vote: one sum over all ranks, which a rank joins only once all its gradients are summed. So where one
survivor knows the outcome, every survivor has what it needs for the update, which is local and the same wherever it
runs: those that lost the connection before they had the outcome are told it. Where no survivor knows it, none has
updated anything. Either way all are on one step, and no copy of the state had to be kept for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where a rank was when it was halted: `step` steps are in its state; it `voted` in the one after these. `vote` is
    the outcome of step number `vote_step`, the last that it knows, None where it knows none."""

    step: int
    voted: bool = False
    vote_step: int = -1
    vote: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The steps in the state of all survivors once those that are behind have updated by `vote`; -1 for no survivor."""

    step: int
    vote: tuple[float, ...] | None = None


def settle(reports: Sequence[Report]) -> Settlement:
    """Return the step that all survivors reach. Ranks that cannot reach it do not count (`reaches`)."""
    step = max((report.step for report in reports), default=-1)
    known = {report.vote_step: report.vote for report in reports if report.vote is not None}
    pending = [report for report in reports if report.step == step and report.voted and step in known]
    if pending:  # one that knows the outcome was halted before it updated
        return Settlement(step=step + 1, vote=known[step])
    return Settlement(step=step, vote=known.get(step - 1))


def reaches(report: Report, settlement: Settlement) -> bool:
    """Return whether a survivor has, or can compute, the state of the settlement."""
    if report.step == settlement.step:
        return True
    return report.step == settlement.step - 1 and report.voted and settlement.vote is not None


def report_of(data: Mapping[str, Any]) -> Report:
    """Return a report from JSON data."""
    vote = data.get("vote")
    return Report(
        step=data["step"],
        voted=data["voted"],
        vote_step=data["vote_step"],
        vote=None if vote is None else tuple(vote),
    )
