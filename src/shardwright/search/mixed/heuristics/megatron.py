"""What Megatron-LM does on machines of several types: one uniform plan over all of them, which the slowest decides.

The same degrees, layers and micro-batches everywhere; ranks count through the machines in the order of the cluster,
pipeline ranks outermost. The rule of thumb that a mixed plan has to beat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np

from shardwright.arrays import Ints
from shardwright.cost.context import Context
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE
from shardwright.plans.abilities import user_buffers_run
from shardwright.plans.plan import Plan
from shardwright.rounding import coarse
from shardwright.search.mixed.bounds.stage_limits import figures, stage_layers
from shardwright.search.mixed.drafts.draft import Draft, plan_of
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.tables.columns import Layers, Table, layers_of
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import divisors
from shardwright.spec.cluster import Cluster

RULE = "one uniform plan over all machines, the slowest GPU decides (Megatron-LM)"
MOST = 4  # plans costed exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    seconds: float
    setting: Setting
    depth: int
    copies: int
    mode: int
    units: tuple[int, ...]


def uniform_plans(
    contexts: Sequence[Context],
    cluster: Cluster,
    settings: Sequence[Setting],
    tables: Sequence[Table],
    kinds: Sequence[int],
) -> list[Plan]:
    """Return the most promising uniform plans over all machines of the types `kinds`, without predictions."""
    guesses: list[_Guess] = []
    for setting, table in zip(settings, tables, strict=True):
        units = np.zeros_like(table.units)
        units[list(kinds)] = table.units[list(kinds)]
        able = setting.symmetric and np.count_nonzero(units) == len(kinds)
        if able and (setting.tp[0] == 1 or setting.sequence_parallel):
            guesses += _guesses(contexts[0], setting, replace(table, units=units))
    guesses.sort(key=lambda guess: coarse(guess.seconds))
    return [_plan(contexts, cluster, guess) for guess in guesses[:MOST]]


def _guesses(context: Context, setting: Setting, table: Table) -> Iterator[_Guess]:
    """Yield pipeline lengths with the least recomputation that fits every type, and about how long they take."""
    layers, units = layers_of(table), int(table.units.sum())
    total = context.job.global_batch // setting.micro_batch
    kinds = np.flatnonzero(table.units > 0)
    for depth in divisors(units, min(units, table.layers)):
        copies = max(divisors(total, units // depth))
        held = -(-table.layers // depth)
        for mode, slower in ((NONE, 0.0), (SELECTIVE, layers.core), (BLOCK, layers.recompute)):
            if _fit(table, layers, kinds, depth, held, copies, mode):
                each = held * (layers.seconds + slower) + layers.last_seconds
                seconds = (total // copies + depth - 1) * float(each[kinds].max())
                each_type = tuple(table.units.tolist())
                yield _Guess(seconds=seconds, setting=setting, depth=depth, copies=copies, mode=mode, units=each_type)
                break


def _fit(table: Table, layers: Layers, kinds: Ints, depth: int, held: int, copies: int, mode: int) -> bool:
    flight = (depth - np.arange(depth)).astype(np.float64)
    for kind in kinds:
        of = figures(table, layers, copies).take(np.full(depth, kind))
        most = stage_layers(of, flight, np.array([1e12]), (mode,), layers)[0]
        if most.min() < held:
            return False
    return True


def _plan(contexts: Sequence[Context], cluster: Cluster, guess: _Guess) -> Plan:
    kinds = [place for place, count in enumerate(guess.units) for _ in range(count)]
    layers = len(contexts[0].model.layers)
    starts = tuple(round(stage * layers / guess.depth) for stage in range(guess.depth + 1))
    held = max(end - begin for begin, end in pairwise(starts))
    recompute = ((guess.mode, held),) * guess.depth
    paths = [tuple(kinds[stage * guess.copies + copy] for stage in range(guess.depth)) for copy in range(guess.copies)]
    size = contexts[0].job.global_batch // guess.setting.micro_batch // guess.copies
    replicas = tuple(
        (Line(kinds=path, starts=starts, recompute=recompute, seconds=0.0, after=0.0), len(list(group)), size)
        for path, group in groupby(paths)
    )
    draft = Draft(setting=guess.setting, replicas=replicas, seconds=guess.seconds)
    plan = plan_of(contexts, cluster, draft, rank_order="tp-cp-ep-dp-pp")
    used = [context for context, count in zip(contexts, guess.units, strict=True) if count]
    beside = plan.sequence_parallel and all(user_buffers_run(context.pool) for context in used)
    return replace(plan, overlap=replace(plan.overlap, tensor_parallel=beside))
