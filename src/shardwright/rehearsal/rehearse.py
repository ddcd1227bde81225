"""`rehearse`: a plan in its trainer's own code, one rank of each kind, as most ranks do what another one does; each
in a process of its own, within limits of time and memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.errors import Problem, SpecError, bad
from shardwright.plans.plan import Plan
from shardwright.progress import tell
from shardwright.rehearsal.document import RankRehearsal, Rehearsal, expected, memory_of
from shardwright.rehearsal.trainers import question_of, trainer_of
from shardwright.runtime.layout.groups import Place, places_of
from shardwright.units import GIGA

LIMIT_SECONDS, LIMIT_GIGABYTES = 900.0, 8.0  # of a rank; chosen: tens of seconds and half a gigabyte are usual
ENTRY = Path(__file__).parent / "inside" / "entry.py"
LAST_LINES = 6


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
    of its own with at most `time_limit` seconds and `memory_limit` GB of data. `trainer` is "train", "fsdp",
    "megatron" or "torchtitan"; None: that of the framework for which the plan is priced. `rank`: none for one of each
    kind.

    Raises SpecError for a plan that the trainer cannot run, what is missing, and code that ends in an error;
    NoRoomError where a limit is too low.
    """
    for name, value in (("time_limit", time_limit), ("memory_limit", memory_limit)):
        if not value > 0.0:
            raise bad(f"`{name}={value:g}`", "is not above 0", "give a positive number")
    chosen, plan = trainer_of(plan, trainer), _spread_evenly(plan)
    places, memory = ranks_of(plan, rank), memory_of(plan)
    played = []
    for number, place in enumerate(places):
        tell(number / len(places))
        question = question_of(plan, chosen, place)
        figures = asked(question, python=python, seconds=time_limit, limit_bytes=memory_limit * GIGA)
        played.append(RankRehearsal(place=place, figures=figures, expected=expected(plan, place, memory)))
    return Rehearsal(trainer=chosen, ranks=tuple(played))


def _spread_evenly(plan: Plan) -> Plan:
    """Return the plan as it is rehearsed: with as many rows for all experts."""
    if plan.job.options.expert_imbalance is None:
        return plan
    options = replace(plan.job.options, expert_imbalance=None)
    return replace(plan, job=replace(plan.job, options=options), prediction=None)


def ranks_of(plan: Plan, asked: Sequence[int] = ()) -> tuple[Place, ...]:
    """Return the places of the ranks `asked` for, or of one rank of each kind: of every shape of replica the first and
    the last stage and one between of each GPU type, that with most layers. Raises SpecError for a rank that the plan
    does not have."""
    places = places_of(plan)
    for rank in asked:
        if not 0 <= rank < len(places):
            raise bad(f"`rank={rank}`", f"the plan has ranks 0 to {len(places) - 1}", "name one of these")
    if asked:
        return tuple(places[rank] for rank in dict.fromkeys(asked))
    known: dict[object, Place] = {}
    for place in places:
        if (place.copy, place.context_rank, place.tensor_rank) == (0, 0, 0) and _stands_for_others(plan, place):
            replica = plan.replicas[place.replica]
            known.setdefault((replica.stages, place.sizes, replica.state, place.stage), place)
    return tuple(sorted(known.values(), key=lambda place: place.rank))


def _stands_for_others(plan: Plan, place: Place) -> bool:
    """Whether a place is at an end of its pipeline, or has most layers of those between with its GPU type."""
    if place.stage in (0, place.depth - 1):
        return True
    stages = plan.replicas[place.replica].stages
    between = [number for number in range(1, place.depth - 1) if stages[number].gpu == place.gpu]
    return place.stage == max(between, key=lambda number: (stages[number].layer_count, -number))


class NoRoomError(Exception):
    """A rehearsal needs more host memory or time than it is given."""


def asked(question: dict[str, Any], *, python: str | None, seconds: float, limit_bytes: float) -> dict[str, Any]:
    """Return the answer to a question, of the interpreter `python` (None: this one).

    Raises SpecError for what is missing or refused, and where the trainer's code ends in an error; NoRoomError where it
    needs more than `seconds` or `limit_bytes` of host memory.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-rehearsal-") as folder:
        ask, answer = Path(folder) / "question.json", Path(folder) / "answer.json"
        ask.write_text(json.dumps(question | {"limit_bytes": limit_bytes}), encoding="utf-8")
        interpreter = sys.executable if python is None else os.path.abspath(os.path.expanduser(python))
        command = [interpreter, str(ENTRY), str(ask), str(answer)]
        environment = {
            name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        }
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", cwd=folder,
                timeout=seconds, env=environment | ({} if question.get("on_gpu") else {"CUDA_VISIBLE_DEVICES": ""}),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NoRoomError(f"rank {question['rank']} took over `time_limit={seconds:g}` seconds") from None
        except OSError as error:
            raise bad(f"`python={python}`", f"cannot be started: {error.strerror}", "name an interpreter") from None
        if not answer.is_file() or not answer.stat().st_size:
            raise _died(done, question, limit_bytes)
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "refused" in result:
        raise SpecError(Problem(**result["refused"]))
    if "out_of_memory" in result:
        raise _no_memory(question, limit_bytes)
    if "failed" in result:
        where = [line.strip() for line in result["trace"].splitlines() if line.strip().startswith("File ")][-1:]
        message = f"the trainer's own code ended in {result['failed'][:400]}" + "".join(f" at {line}" for line in where)
        raise bad(f"rank {question['rank']}", message, "the plan would not start so, or a rehearsal lacks a stand-in")
    return result


def _died(done: subprocess.CompletedProcess[str], question: dict[str, Any], limit_bytes: float) -> Exception:
    """Return what to raise where a process ended without an answer."""
    last = " ".join(done.stderr.strip().splitlines()[-LAST_LINES:])
    if "MemoryError" in last or (done.returncode < 0 and "alloc" in last):
        return _no_memory(question, limit_bytes)
    message = f"ended with status {done.returncode} and no answer: {last[-400:] or 'nothing was said'}"
    return bad("the process of the rehearsal", message, "Python 3.11 or newer with the trainer runs it; see `python=`")


def _no_memory(question: dict[str, Any], limit_bytes: float) -> NoRoomError:
    return NoRoomError(f"rank {question['rank']} needs over `memory_limit={limit_bytes / 1e9:g}` GB of host memory")
