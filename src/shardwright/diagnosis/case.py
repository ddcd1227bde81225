"""`Case`: all that is known of a run, in one value that the causes look at.

Beside figures these are lines of logs that tell a cause by themselves (patterns in `data/signs.csv`, each with what the
line means), and how many tokens of a token file are padding: a token that fills samples up to their end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.replica_time import Mixed
from shardwright.cost.predict import predict
from shardwright.errors import bad
from shardwright.files import shipped_table
from shardwright.plans.placement import placement_of, ranks
from shardwright.plans.plan import Plan, Prediction
from shardwright.records import record
from shardwright.runs.run import MeasuredRun
from shardwright.runs.state import GoodState
from shardwright.runtime.storage.data import open_tokens
from shardwright.traces.figures import RankFigures
from shardwright.traces.memory import MemorySnapshot, OutOfMemory

SLOWEST = 1.5  # times what is expected; chosen, 1.3 to 2
LONGEST_LINE = 2_000  # characters that are looked at
MOST_SAMPLES = 4_096  # that are looked at, evenly spread
LONGEST_RUN = 2  # of one token at the end of a sample, which a text may have


@record(slots=False)
class Case:
    """A plan, what a step of it took, and what else was recorded.

    `plan` is costed; `efficiency` is what costed it. `step_seconds` are the median of the good state, of the log, else
    of the trace, else as the user says; None where nothing tells. `stall_seconds` are what an average step takes beyond
    that, by reason. `ranks` are figures of traces, `signs` lines of logs that tell a cause.
    """

    plan: Plan
    efficiency: Efficiency
    step_seconds: float | None = None
    spread: float = 0.0
    run: MeasuredRun | None = None
    state: GoodState | None = None
    stall_seconds: tuple[tuple[str, float], ...] = ()
    ranks: tuple[RankFigures, ...] = ()
    signs: tuple[Sign, ...] = ()
    padding: Padding | None = None
    snapshots: tuple[MemorySnapshot, ...] = ()
    out_of_memory: OutOfMemory | None = None

    @property
    def prediction(self) -> Prediction:
        """What the cost model says of the plan."""
        return self.plan.predicted

    @property
    def expected_seconds(self) -> float:
        """What a step should take."""
        return self.prediction.iteration_seconds

    @property
    def limit_seconds(self) -> float:
        """What a step may take and be as expected: the end of the prediction's interval, which is wide far from
        published runs, and no more than `SLOWEST` times what is expected."""
        return min(self.prediction.interval[1], SLOWEST * self.expected_seconds)

    @cached_property
    def account(self) -> Mixed:
        """The iteration of the plan, stage by stage."""
        return mixed_iteration(self.plan, self.efficiency)

    @cached_property
    def stage_of_rank(self) -> dict[int, tuple[int, int]]:
        """The replica and stage of each rank, where ranks are placed as the plan says."""
        placement = placement_of(self.plan)
        stages = [
            (number, stage) for number, replica in enumerate(self.plan.replicas) for stage in range(len(replica.stages))
        ]
        pairs = zip(ranks(self.plan, placement).tolist(), placement.stage.tolist(), strict=True)
        return {rank: stages[stage] for rank, stage in pairs}

    @cached_property
    def critical(self) -> RankFigures | None:
        """The rank that the others wait for: it waits least itself."""
        return min(self.ranks, key=lambda rank: (rank.exposed_seconds, rank.rank), default=None)

    def expected_compute(self, rank: int) -> float | None:
        """Return the seconds in which a rank should compute, without the update; None where its stage is not known."""
        place = None if self.plan.layered else self.stage_of_rank.get(rank)
        if place is None:
            return None
        replica, stage = place
        times = self.account.replicas[replica].undisturbed
        return float(self.plan.replicas[replica].micro_batches * times.both[0, :, stage].sum())


def costed(plan: Plan, efficiency: Efficiency) -> Plan:
    return plan.costed(predict(plan, efficiency, contexts=contexts_of(plan, efficiency)))


def median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else 0.0


@record
class Sign:
    """A line that tells a cause: where it stands, how many like it there are, and what it means."""

    cause: str
    place: str
    text: str
    meaning: str
    count: int


def signs_of(lines: Iterable[str], name: str) -> tuple[Sign, ...]:
    """Return the signs in the lines of a file, each with its first line."""
    first: dict[int, tuple[int, str]] = {}
    counts: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not any(word in line for word in _words()):
            continue
        for row, (_, _, pattern) in enumerate(_patterns()):
            if pattern.search(line[:LONGEST_LINE]):
                first.setdefault(row, (number, line.strip()[:200]))
                counts[row] = counts.get(row, 0) + 1
    return tuple(
        Sign(
            cause=_patterns()[row][0],
            place=f"{name}, line {number}",
            text=text,
            meaning=_patterns()[row][1],
            count=counts[row],
        )
        for row, (number, text) in sorted(first.items())
    )


@cache
def _patterns() -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    rows = shipped_table("shardwright.diagnosis", "signs.csv")
    return tuple((row["cause"], row["meaning"], re.compile(row["pattern"])) for row in rows)


@cache
def _words() -> tuple[str, ...]:
    """Parts of lines of which a sign has one: most lines have none, and cost no pattern."""
    return tuple(dict.fromkeys(row["word"] for row in shipped_table("shardwright.diagnosis", "signs.csv")))


@record
class Padding:
    """The share of tokens that are padding, the token that pads, and how many samples say so."""

    share: float
    token: int | None
    samples: int
    source: str


def padding_of(path: Path, seq_len: int) -> Padding:
    """Return what share of the samples of `seq_len` tokens of a token file (`NAME.bin`, with `NAME.json` beside it) is
    padding. Raises SpecError for a file that is none, or has less than a sample."""
    file = open_tokens(path)
    count = len(file.tokens) // seq_len
    if not count:
        raise bad(str(path), f"has less than a sample of {seq_len} tokens", "name the file that the run trains on")
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_SAMPLES)).astype(np.int64))
    samples = np.stack(file.read([(place * seq_len, (place + 1) * seq_len) for place in chosen])).astype(np.int64)
    runs = _runs_at_end(samples)
    padded = runs > LONGEST_RUN
    last = samples[padded, -1]
    if not len(last):
        return Padding(share=0.0, token=None, samples=len(chosen), source=str(path))
    token = int(np.bincount(last).argmax())
    ours = samples[:, -1] == token
    share = float(runs[ours].sum() / samples.size) if (last == token).mean() > 0.5 else 0.0
    return Padding(share=share, token=token, samples=len(chosen), source=str(path))


def _runs_at_end(samples: Ints) -> Ints:
    """Return how many times each sample repeats its last token at the end, [samples]."""
    differs = samples[:, ::-1] != samples[:, -1:]
    return np.asarray(np.where(differs.any(axis=1), differs.argmax(axis=1), samples.shape[1]))
