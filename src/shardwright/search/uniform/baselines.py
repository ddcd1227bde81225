"""What an expert would try: plans from published rules of thumb. They are always in the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import Verdict, evaluate
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, ZERO1, ZERO3, Row, Strategies, settled, strategies
from shardwright.plans.abilities import flash_attention_runs
from shardwright.plans.cuts import Cut, cuts_fit
from shardwright.plans.findings import Failure, Shortage
from shardwright.records import record
from shardwright.search.space.axes import Space, divisors, tensor_parallel_degrees, virtual_stages
from shardwright.search.space.layouts import even_split

MICRO_BATCHES = (1, 2, 4, 8)
BESIDE = dict.fromkeys(("overlap_pp", "overlap_grad", "overlap_param"), True)  # what runs beside computation


@record
class Tried:
    """A rule of thumb with the row it leads to, or None and why it leads to none."""

    rule: str
    row: Strategies | None
    seconds: float
    failure: Failure | Shortage | None = None


Rows = list[Row]


def baselines(context: Context) -> tuple[tuple[Tried, ...], Verdict | None]:
    """Return the plans of all rules on the whole pool, each rule with the first or best of its rows that fits, and
    the verdict on all rows."""
    found = _rules(context)
    rows = [row for _, wanted, _ in found for row in wanted]
    if not rows:
        return tuple(
            Tried(rule=rule, row=None, seconds=np.inf, failure=Failure.NO_LEGAL_SETTING) for rule, _, _ in found
        ), None
    verdict = evaluate(context, strategies(rows))
    tried, offset = [], 0
    for rule, wanted, best in found:
        tried.append(_chosen(context, rule, verdict, range(offset, offset + len(wanted)), best=best))
        offset += len(wanted)
    return tuple(tried), verdict


def rows_tried(context: Context) -> Strategies | None:
    """Return the rows of all rules on the whole pool, or None where none is legal."""
    rows = [row for _, wanted, _ in _rules(context) for row in wanted]
    return strategies(rows) if rows else None


def _rules(context: Context) -> list[tuple[str, Rows, bool]]:
    """Return the rules, each with its rows, and whether the best of them counts, not the first that fits."""
    return [
        ("smallest tp × pp that fits, tp inside a machine (Megatron-LM guide)", _smallest(context, NONE), False),
        (
            "the same with full recomputation (Megatron-LM guide, out-of-memory advice)",
            _smallest(context, BLOCK),
            False,
        ),
        (
            "tp = GPUs of a machine, then pp until it fits, best micro-batch (Narayanan et al. 2021)",
            _wide(context),
            True,
        ),
        ("the same, interleaved, selective recomputation (Korthikanti et al. 2022)", _interleaved(context), True),
        ("data parallel only, distributed optimizer (ZeRO-1), best micro-batch", _data(context, ZERO1), True),
        (
            "fully sharded data parallel (ZeRO-3), best micro-batch, recomputation if needed",
            _data(context, ZERO3),
            True,
        ),
    ]


def _chosen(context: Context, rule: str, verdict: Verdict, places: Sequence[int], *, best: bool) -> Tried:
    """Return the first row that fits, or the fastest."""
    fitting = [place for place in places if verdict.fits[place]]
    if not fitting:
        if not places:
            return Tried(rule=rule, row=None, seconds=np.inf, failure=Failure.NOT_LEGAL_HERE)
        least = min(places, key=lambda place: float(verdict.peak_bytes[place]))
        short = Shortage(float(verdict.peak_bytes[least]) / context.headroom, context.pool.memory_bytes)
        return Tried(rule=rule, row=None, seconds=np.inf, failure=short)
    place = min(fitting, key=lambda p: (float(verdict.seconds[p]), p)) if best else fitting[0]
    row = verdict.rows.take(np.array([place]))
    return Tried(rule=rule, row=row, seconds=float(verdict.seconds[place]))


def _row(context: Context, **given: Any) -> Row | None:
    """Return a full row on as many of the GPUs as the batch allows, or None if the degrees are illegal, or if layers
    were measured, but not these."""
    tp, pp, vpp, micro = given["tp"], given["pp"], given.get("vpp", 1), given.get("micro_batch", 1)
    job, gpus = context.job, context.pool.gpus // (tp * pp)
    if gpus < 1 or job.global_batch % micro:
        return None
    only, ones = context.source.only, np.ones(1, dtype=np.int64)
    if not context.source.knows(context.pool.gpu, tp * ones, ones, ones, micro * ones)[0]:
        return None
    dp = max(divisors(job.global_batch // micro, gpus))
    count = job.global_batch // micro // dp
    if vpp > 1 and count % pp:
        return None
    first, last = even_split(context, pp * vpp)
    experts = [kind.moe.experts for kind in context.model.kinds if kind.moe is not None]
    shares = only.get("ep", divisors(int(np.gcd.reduce(experts)), dp)) if experts else (1,)
    ep = max((int(d) for d in shares if dp % d == 0), default=1)
    plain = 1 not in only.get("sequence_parallel", (0, 1)) and not experts
    sequence = tp > 1 and job.seq_len % tp == 0 and not plain
    if experts and tp > 1 and not sequence:
        return None
    fused = "flash" in only or flash_attention_runs(context.pool.gpu, job)
    ends = {"first_layers": first, "last_layers": last}
    usual = {"dp": dp, "ep": ep, "sequence_parallel": sequence, "flash": fused, "sharding": ZERO1, **BESIDE, **ends}
    row = settled({**usual, **given})
    return row if cuts_fit(context.model, job, Cut(tp, row["cp"], row["etp"], micro)) else None


def _rows(context: Context, wanted: Rows) -> Rows:
    return [row for given in wanted if (row := _row(context, **given)) is not None]


def _pipelines(context: Context, tp: int) -> list[int]:
    """Return pipeline lengths that divide the GPUs (layers that do not divide are split unequally)."""
    machines = context.pool.gpus // tp
    return divisors(machines, min(context.layer_count, machines))


def _degrees(context: Context) -> list[int]:
    return [tp for tp in tensor_parallel_degrees(context) if tp <= context.pool.gpus_per_node]


def _smallest(context: Context, recompute: int) -> Rows:
    layers = {"recompute": recompute, "recompute_layers": 0 if recompute == NONE else context.layer_count}
    pairs = [(tp * pp, pp, tp) for tp in _degrees(context) for pp in _pipelines(context, tp)]
    return _rows(context, [{"tp": tp, "pp": pp, **_clipped(context, layers, pp)} for _, pp, tp in sorted(pairs)])


def _clipped(context: Context, layers: dict[str, int], pp: int) -> dict[str, int]:
    """Return the settings with no more recomputed layers than a stage has."""
    longest = -(-context.layer_count // pp)
    return {**layers, "recompute_layers": min(layers["recompute_layers"], longest)}


def _wide(context: Context) -> Rows:
    tp = _degrees(context)[-1]
    return _rows(
        context,
        [{"tp": tp, "pp": pp, "micro_batch": size} for pp in _pipelines(context, tp)[:8] for size in MICRO_BATCHES],
    )


def _interleaved(context: Context) -> Rows:
    tp = _degrees(context)[-1]
    wanted = []
    for pp in [length for length in _pipelines(context, tp) if length > 1][:6]:
        even = [v for v in virtual_stages(context, Space(), pp) if v > 1][:2]
        wanted += [{"tp": tp, "pp": pp, "vpp": vpp, "recompute": SELECTIVE} for vpp in even]
    return _rows(context, wanted)


def _data(context: Context, sharding: int) -> Rows:
    full = {"recompute": BLOCK, "recompute_layers": context.layer_count}
    kinds: list[dict[str, int]] = [{}] if sharding == ZERO1 else [{}, full]
    return _rows(
        context,
        [
            {"tp": 1, "pp": 1, "micro_batch": size, "sharding": sharding, **kind}
            for size in MICRO_BATCHES
            for kind in kinds
        ],
    )
