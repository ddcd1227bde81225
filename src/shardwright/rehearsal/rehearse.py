"""`rehearse`: a plan in its trainer's own code, one rank of each kind."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.errors import bad
from shardwright.plans.plan import Plan
from shardwright.progress import tell
from shardwright.rehearsal.account import expected, memory_of
from shardwright.rehearsal.document import RankRehearsal, Rehearsal
from shardwright.rehearsal.process import asked
from shardwright.rehearsal.ranks import ranks_of
from shardwright.rehearsal.trainers import question_of, trainer_of
from shardwright.units import GIGA

LIMIT_SECONDS, LIMIT_GIGABYTES = 900.0, 8.0  # of a rank; chosen: tens of seconds and half a gigabyte are usual


def rehearse(
    plan: Plan,
    *,
    trainer: str | None = None,
    rank: Sequence[int] = (),
    python: str | None = None,
    time_limit: float = LIMIT_SECONDS,
    memory_limit: float = LIMIT_GIGABYTES,
) -> Rehearsal:
    """Run one step of a plan in its trainer's own code, on fake tensors, and return what it took.

    This executes the trainer's code: by the interpreter `python` (None: this one), rank after rank, each in a process
    of its own with at most `time_limit` seconds and `memory_limit` GB of data. `trainer` is "train", "fsdp" or
    "megatron"; None: that of the framework for which the plan is priced. `rank`: none for one of each kind.

    Raises SpecError for a plan that the trainer cannot run, what is missing, and code that ends in an error;
    NoRoomError where a limit is too low.
    """
    for name, value in (("time_limit", time_limit), ("memory_limit", memory_limit)):
        if not value > 0.0:
            raise bad(f"`{name}={value:g}`", "is not above 0", "give a positive number")
    chosen = trainer_of(plan, trainer)
    places, memory = ranks_of(plan, rank), memory_of(plan)
    played = []
    for number, place in enumerate(places):
        tell(number / len(places))
        question = question_of(plan, chosen, place)
        figures = asked(question, python=python, seconds=time_limit, limit_bytes=memory_limit * GIGA)
        played.append(RankRehearsal(place=place, figures=figures, expected=expected(plan, place, memory)))
    return Rehearsal(trainer=chosen, ranks=tuple(played))
