"""Tables of a mixed search, filled by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.collectives import transfer_seconds
from shardwright.cost.context import Context, shard_index
from shardwright.cost.footprint import P2P_BUFFERS
from shardwright.cost.memory import (
    gathered_bytes,
    logit_bytes,
    room_for_tensors,
    state_bytes,
    trained_share,
)
from shardwright.cost.overheads import STATE_BYTES, UPDATE_EFFICIENCY
from shardwright.cost.step import message_bytes
from shardwright.cost.strategy import UNSHARDED, Floats, Strategies
from shardwright.search.mixed.settings import Setting, rows_of, units
from shardwright.search.mixed.tables import RUNNING, Table

NAMES = dict(
    zip(
        RUNNING,
        ("forward", "backward", "core_seconds", "activations", "core", "inputs", "dense", "expert"),
        strict=True,
    )
)


def tables(contexts: Sequence[Context], settings: Sequence[Setting]) -> list[Table]:
    """Return the table of every setting, with a row for each pool."""
    rows = rows_of(settings, contexts[0].model, stages=2, copies=2)
    parts = [_columns(context, settings, rows) for context in contexts]
    model, job = contexts[0].model, contexts[0].job
    fabrics = tuple(context.links for context in contexts)
    found = []
    for place, setting in enumerate(settings):
        columns = {name: np.stack([part[name][place] for part in parts]) for name in parts[0]}
        tied = model.token_table_parameters / setting.tp if model.tied_embeddings else 0.0
        found.append(Table(**columns, fabrics=fabrics, tied_parameters=tied, trained=trained_share(job)))
    return found


def _columns(context: Context, settings: Sequence[Setting], rows: Strategies) -> dict[str, Floats]:
    """Return all columns of one pool, [S] or [S, L + 3]."""
    count, usable = len(settings), np.array([units(context, setting) for setting in settings])
    if context.measured:  # what was not measured has no units there, and any figures
        rows = rows.take(np.where(usable > 0, np.arange(count), int(np.argmax(usable > 0))))
    model, job, pool, links, software = context.model, context.job, context.pool, context.links, context.software
    shards = shard_index(context, rows).of(rows)
    table, row = shards.table, shards.row
    running = {name: getattr(table, field)[row] for name, field in NAMES.items()}
    ones, alone = np.ones(count), replace(rows, pp=np.ones_like(rows.pp))
    size = message_bytes(context, rows)
    state = state_bytes(job, ones, 0 * ones, ones, ones, UNSHARDED + 0 * rows.tp, 0 * ones, 0 * ones)
    gathered = gathered_bytes(model, job, rows.micro_batch, rows.cp, rows.tp, rows.pp)
    single = gathered_bytes(model, job, rows.micro_batch, rows.cp, rows.tp, alone.pp)
    working = table.gradients[row]
    logits = logit_bytes(model, job, rows.micro_batch, rows.cp, rows.tp)
    rate = pool.gpu.memory_bytes_per_second * UPDATE_EFFICIENCY / software.optimizer
    tied = 4.0 * model.vocab * model.hidden / rows.tp
    yes, no = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
    return {
        **running,
        "host": software.rank_seconds * rows.tp * (rows.tp > 1),
        "each": software.pass_seconds * ones,
        "near": transfer_seconds(links, size, no),
        "far": transfer_seconds(links, size, yes),
        "room_bytes": room_for_tensors(job, context.memory_limit_bytes) * ones,
        "fixed_bytes": working + single,
        "staged_bytes": P2P_BUFFERS * table.boundary[row] + gathered - single,
        "again_bytes": table.widest[row],
        "logit_bytes": logits,
        "working_bytes": working,
        "state_bytes": state.weights + state.gradients,
        "shared_bytes": state.optimizer,
        "update_seconds": trained_share(job) * STATE_BYTES[job.optimizer] / rate * ones,
        "tied_near": transfer_seconds(links, tied, no),
        "tied_far": transfer_seconds(links, tied, yes),
        "step_seconds": software.step_seconds * ones,
        **({} if model.tied_embeddings else {"tied_near": 0.0 * ones, "tied_far": 0.0 * ones}),
        "units": usable,
        "local": np.array([max(pool.domain_gpus // setting.tp, 1) for setting in settings]),
    }
