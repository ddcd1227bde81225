"""What Megatron-LM does on machines of several types: one uniform plan over all of them, or over those of some types.

The same degrees, layers and micro-batches everywhere; ranks count through the machines in the order of the cluster,
pipeline ranks outermost. The rule of thumb that a mixed plan has to beat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import groupby, islice, pairwise

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.context import Context
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE
from shardwright.plans.abilities import tensor_parallel_overlaps
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.search.mixed.bounds.capacity import figures, stage_layers
from shardwright.search.mixed.drafts.draft import Draft, plan_of
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.tables.columns import Layers, Table, layers_of
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import divisors
from shardwright.spec.cluster import Cluster

RULE = "one uniform plan over all machines, the slowest GPU decides (Megatron-LM)"
MOST = 4  # plans costed exactly
MODES = (NONE, SELECTIVE, BLOCK)  # of recomputation, least first


@record(kw_only=False)
class _Guess:
    """`copies` pipelines of `depth` stages on so many `units` of each type, with `micro_batches` for each."""

    setting: Setting
    table: Table
    layers: Layers
    units: tuple[int, ...]
    depth: int
    copies: int
    micro_batches: int

    @property
    def kinds(self) -> Ints:
        return np.flatnonzero(self.units)

    @property
    def held(self) -> int:
        """Layers of the longest stage."""
        return -(-self.table.layers // self.depth)

    def seconds(self, mode: int) -> float:
        """About how long an iteration takes that recomputes so."""
        layers = self.layers
        slower = {NONE: 0.0 * layers.core, SELECTIVE: layers.core, BLOCK: layers.recompute}[mode]
        stage_seconds = self.held * (layers.seconds + slower) + layers.last_seconds
        return (self.micro_batches + self.depth - 1) * coarse(float(stage_seconds[self.kinds].max()))


def uniform_plans(
    contexts: Sequence[Context],
    cluster: Cluster,
    settings: Sequence[Setting],
    tables: Sequence[Table],
    choices: Iterable[Sequence[int]],
    longest: float = np.inf,
) -> Iterator[list[Plan]]:
    """Yield for each of some `choices` of types the most promising uniform plans over all of their machines, without
    predictions: of those that look as if they took less than `longest` seconds."""
    able = [
        (setting, table, layers_of(table))
        for setting, table in zip(settings, tables, strict=True)
        if setting.symmetric and not setting.spread and (setting.tp[0] == 1 or setting.sequence_parallel)
    ]
    for kinds in choices:
        guesses = [guess for way in able for guess in _guesses(contexts[0], *way, kinds)]
        chosen = islice(_that_fit(guesses, longest), MOST)
        yield [_plan(contexts, cluster, guess, mode) for guess, mode in chosen]


def _guesses(
    context: Context, setting: Setting, table: Table, layers: Layers, kinds: Sequence[int]
) -> Iterator[_Guess]:
    """Yield what has all units of some types, which each have some, with all pipeline lengths."""
    units = tuple(int(count) if kind in kinds else 0 for kind, count in enumerate(table.units))
    total = context.job.global_batch // setting.micro_batch
    if np.count_nonzero(units) == len(kinds):
        for depth in divisors(sum(units), min(sum(units), table.layers)):
            copies = max(divisors(total, sum(units) // depth))
            yield _Guess(setting, table, layers, units, depth, copies, total // copies)


def _that_fit(guesses: Sequence[_Guess], longest: float) -> Iterator[tuple[_Guess, int]]:
    """Yield those that fit every type with the least recomputation that they need, the quickest first."""
    open_ones = [(coarse(guess.seconds(NONE)), place, guess, 0) for place, guess in enumerate(guesses)]
    heapify(open_ones)
    while open_ones and open_ones[0][0] < longest:
        _, place, guess, least = heappop(open_ones)
        if _fits(guess, MODES[least]):
            yield guess, MODES[least]
        elif least + 1 < len(MODES):
            heappush(open_ones, (coarse(guess.seconds(MODES[least + 1])), place, guess, least + 1))


def _fits(guess: _Guess, mode: int) -> bool:
    flight = (guess.depth - np.arange(guess.depth)).astype(np.float64)
    of = figures(guess.table, guess.layers, guess.copies)
    for kind in guess.kinds:
        stages = of.take(np.full(guess.depth, kind))
        most = stage_layers(stages, flight, np.array([1e12]), (mode,), guess.layers)[0]
        if most.min() < guess.held:
            return False
    return True


def _plan(contexts: Sequence[Context], cluster: Cluster, guess: _Guess, mode: int) -> Plan:
    kinds = [place for place, count in enumerate(guess.units) for _ in range(count)]
    layers = len(contexts[0].model.layers)
    starts = tuple(round(stage * layers / guess.depth) for stage in range(guess.depth + 1))
    held = max(end - begin for begin, end in pairwise(starts))
    recompute = ((mode, held),) * guess.depth
    paths = [tuple(kinds[stage * guess.copies + copy] for stage in range(guess.depth)) for copy in range(guess.copies)]
    lines = [
        (Line(kinds=path, starts=starts, recompute=recompute, seconds=0.0, after=0.0), len(list(group)))
        for path, group in groupby(paths)
    ]
    replicas = tuple((line, count, guess.micro_batches) for line, count in lines)
    draft = Draft(setting=guess.setting, replicas=replicas, seconds=guess.seconds(mode))
    plan = plan_of(contexts, cluster, draft, rank_order="tp-cp-ep-dp-pp")
    used = [context for context, count in zip(contexts, guess.units, strict=True) if count]
    beside = plan.sequence_parallel and all(tensor_parallel_overlaps(context.pool, context.job) for context in used)
    return replace(plan, overlap=replace(plan.overlap, tensor_parallel=beside))
