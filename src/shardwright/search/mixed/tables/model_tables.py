"""Tables of a mixed search, filled by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.moments import embedded_again, least_message_buffers, staying_bytes
from shardwright.cost.iteration.orthogonalisation import running_product_seconds
from shardwright.cost.iteration.step import BUCKET_SHARE, message_bytes, optimizer_seconds, tied_bytes
from shardwright.cost.layers.table import running_sums
from shardwright.cost.memory.ends import head_bytes, whole_units
from shardwright.cost.memory.sizes import (
    StateSplit,
    copied_bytes,
    elsewhere,
    gathered_bytes,
    parameter_bytes,
    room_for_tensors,
    summed_bytes,
    trained_share,
    update_copy_bytes,
)
from shardwright.cost.network.collectives import transfer_seconds
from shardwright.cost.strategies import UNSHARDED
from shardwright.search.mixed.tables.columns import Table, Unit
from shardwright.search.mixed.tables.settings import Setting, Sharing, rows_of, timed, units
from shardwright.spec.cluster import NodePool, SiteLink
from shardwright.spec.job import Job, dispatcher_of
from shardwright.spec.model import Model

NAMES = {
    **{name: name for name in ("forward", "backward", "kept", "offloaded", "dense", "expert", "ends")},
    "core": "core_seconds",
}  # of columns of a `LayerTable`
TIMES = ("forward", "backward", "core")
TIED = ("tied_near", "tied_far", "tied_parameters", "tied_elsewhere")  # none where ends are not tied


def tables(contexts: Sequence[Context], settings: Sequence[Setting], links: Sequence[SiteLink] = ()) -> list[Table]:
    """Return the table of every setting, with a row for each pool; `links` join their sites. The figures of a type are
    made once for all settings that are alike on it."""
    if not settings:
        return []
    model, job = contexts[0].model, contexts[0].job
    parts = [
        _by_setting(_in_plans(context, contexts), [choice.on(place) for choice in settings])
        for place, context in enumerate(contexts)
    ]
    fabrics = tuple(context.quickest for context in contexts)
    rates, delays = _between_sites(contexts, links)
    tables = []
    for setting in settings:
        of_setting = [part[setting.on(place)] for place, part in enumerate(parts)]
        columns: dict[str, Any] = {name: np.array([choice[name] for choice in of_setting]) for name in of_setting[0]}
        degrees = np.array(setting.tp)
        shards = np.lcm.reduce(degrees[columns["units"] > 0], initial=1)
        whole_bytes = float((columns.pop("part_bytes") * degrees * setting.cp).min())
        unit = tuple(
            Unit(tp=tp, cp=setting.cp, expert_gpus=spread, domain_gpus=fabric.domain_gpus)
            for tp, spread, fabric in zip(setting.tp, columns.pop("expert_gpus").tolist(), fabrics, strict=True)
        )
        tables.append(
            Table(
                **columns,
                fabrics=fabrics,
                wide=degrees / degrees.min(),
                copied_bytes=np.where(degrees < shards, sum(copied_bytes(model, job)), 0.0),
                longest_move=_longest_move(contexts, setting, columns["near"], columns["far"]),
                unit=unit,
                activation_bytes=whole_bytes,
                alone=bool(contexts[0].model.mtp_layers),
                site_rates=rates,
                site_delays=delays,
                **_traffic(setting.sharing, model, job),
            )
        )
    return tables


def _traffic(sharing: Sharing, model: Model, job: Job) -> dict[str, Any]:
    """Return what of gradients and weights travels once an iteration, and beside which part of a pass."""
    widths, trained, sharded = widths_of(job), trained_share(model, job), sharing.sharding != UNSHARDED
    return {
        "reduced_bytes": trained * float(summed_bytes(job, sharing.sharding)) * (1.0 if sharded else 2.0),  # and spread
        "gathered_bytes": trained * widths.weight_gather * sharded,
        "reduced_beside": BUCKET_SHARE * sharing.overlap_grad,
        "gathered_beside": BUCKET_SHARE * sharing.overlap_param,
        "shared_update": sharded,
    }


def _between_sites(contexts: Sequence[Context], links: Sequence[SiteLink]) -> tuple[Floats, Floats]:
    """Return bytes per second and seconds of delay between the sites of all pools, [G, G]."""
    sites = [context.pool.site for context in contexts]
    rates, delays = np.full((len(sites), len(sites)), np.inf), np.zeros((len(sites), len(sites)))
    for link in links:
        for row, site in enumerate(sites):
            for column, other in enumerate(sites):
                if {site, other} == set(link.sites):
                    rates[row, column], delays[row, column] = link.bytes_per_second, link.latency_seconds
    return rates, delays


def _longest_move(contexts: Sequence[Context], setting: Setting, near: Floats, far: Floats) -> float:
    """Return seconds that no message takes longer than: infinite where links between sites, between racks or between
    two types may be slower than those of each type, as may the network beside links inside a machine, or where unequal
    degrees send more than a rank's part."""
    whole = not setting.symmetric and not setting.sequence_parallel
    several = len({context.pool.site for context in contexts}) > 1
    measured = any(first.source.between(first.pool, other.pool) for first, other in combinations(contexts, 2))
    inside = any(context.inside and not context.one_machine for context in contexts)
    if whole or several or measured or inside or any(context.links.rack_gpus for context in contexts):
        return np.inf
    return float(np.maximum(near, far).max())


def _in_plans(context: Context, contexts: Sequence[Context]) -> list[Context]:
    """Return a context as plans on some of `contexts` have it, the first as plans on its type alone: beside GPUs that
    do not run its dispatcher, tokens get to their experts by that of all."""
    everyone = [other.pool.gpu for other in contexts]
    alone, beside = (dispatcher_of(context.job, gpus) for gpus in ([context.pool.gpu], everyone))
    if alone == beside:
        return [context]
    options = replace(context.job.options, dispatcher=beside)
    return [context, replace(context, job=replace(context.job, options=options))]


def _by_setting(ways: Sequence[Context], owns: Sequence[Setting]) -> dict[Setting, dict[str, Floats]]:
    """Return the columns of one pool for each distinct one of `owns`, settings of its type alone: the least times of
    all `ways` that plans have it."""
    distinct, experts = list(dict.fromkeys(owns)), any(setting.ep > 1 for setting in owns)
    columns, *others = (_columns(context, distinct) for context in (ways if experts else ways[:1]))
    for name in TIMES if others else ():
        layers = [np.diff(way[name]) for way in (columns, *others)]
        columns[name] = running_sums(np.min(layers, axis=0))
    return {
        setting: {name: values[place] for name, values in columns.items()} for place, setting in enumerate(distinct)
    }


def _columns(context: Context, owns: Sequence[Setting]) -> dict[str, Floats]:
    """Return all columns of one pool for settings of its type alone, [S] or [S, L + 3]."""
    count, usable = len(owns), np.array([units(context, setting) for setting in owns])
    known = np.array([timed(context, setting) for setting in owns])
    rows = rows_of(owns, context.model, stages=2, copies=2)
    rows = rows.take(np.where(known, np.arange(count), int(np.argmax(known))))  # without times: no units, any figures
    model, job, pool, links, software = context.model, context.job, context.pool, context.quickest, context.software
    shards = layer_rows(context, rows)
    table, row = shards.table, shards.row
    running = {name: getattr(table, field)[row] for name, field in NAMES.items()}
    ones, alone = np.ones(count), replace(rows, pp=np.ones_like(rows.pp))
    size = message_bytes(context, rows)
    state, ends = parameter_bytes(model, job, StateSplit(sharding=rows.sharding, offload=rows.offload))
    shared = state.optimizer * (rows.sharding != UNSHARDED)
    gathered = gathered_bytes(model, job, rows.micro_batch, rows.cp, rows.tp, rows.pp)
    single = gathered_bytes(model, job, rows.micro_batch, rows.cp, rows.tp, alone.pp)
    whole = np.ones(count, dtype=np.int64)
    every, output = staying_bytes(context, rows, shards)
    whole_ends = whole_units(model, job, rows, table.parameters[row], ones, whole)
    logits = head_bytes(model, job, rows.micro_batch, rows.cp, rows.tp)
    lone = replace(rows, dp=whole, cp=whole, ep=whole, etp=rows.tp)
    update = optimizer_seconds(context, lone, ones[:, None], 0.0 * ones[:, None])
    cp, expert_gpus = rows.cp[:, None], rows.ep * rows.etp
    owned = running["expert"] / (rows.tp * rows.cp / expert_gpus)[:, None]
    orthogonal = running_product_seconds(context, running["dense"] / cp, owned, running["ends"] / cp)
    tied = tied_bytes(context, rows)
    yes, no = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
    return {
        **running,
        "host": software.rank_seconds * rows.tp * (rows.tp > 1),
        "each": software.pass_seconds * ones,
        "part_bytes": size,
        "near": transfer_seconds(links, size, no),
        "far": transfer_seconds(links, size, yes),
        "room_bytes": room_for_tensors(job, context.memory_limit_bytes) * ones,
        "fixed_bytes": single + every,
        "staged_bytes": least_message_buffers(job, table.boundary[row], True) + gathered - single,
        "tower_again": table.tower_again[row],
        "frozen_bytes": copied_bytes(model, job)[0] * table.frozen[row],
        "live": table.live[row],
        "group": table.group[row],
        "logit_bytes": logits + table.before_logits[row],
        "output_bytes": output,
        "embedding_bytes": whole_ends.first,
        "update_bytes": update_copy_bytes(job, rows.sharding, 1.0 - rows.offload),
        "state_bytes": state.weights + state.gradients + (state.optimizer - shared),
        "shared_bytes": shared,
        "ends_bytes": sum(getattr(ends, part) - getattr(state, part) for part in ("optimizer", "weights", "gradients")),
        "host_room": pool.host_memory_bytes_per_gpu * ones,
        "in_host": state.in_host,
        "in_host_ends": ends.in_host - state.in_host,
        "update_seconds": update[:, 0],
        "orthogonal": orthogonal,
        "tied_near": transfer_seconds(links, tied, no),
        "tied_far": transfer_seconds(links, tied, yes),
        "step_seconds": software.step_seconds * ones,
        "again_parameters": embedded_again(context) / rows.tp,
        "tied_parameters": model.token_table_parameters / rows.tp,
        "tied_elsewhere": elsewhere(job, model.token_table_parameters / rows.tp) * (rows.sharding != UNSHARDED),
        **({} if model.tied_embeddings else dict.fromkeys(TIED, 0.0 * ones)),
        "expert_gpus": expert_gpus,
        "units": usable,
        "local": np.array([max(pool.domain_gpus // setting.gpus[0], 1) for setting in owns]),
        "period": np.array([_period(pool, setting.gpus[0]) for setting in owns]),
    }


def _period(pool: NodePool, gpus: int) -> int:
    """Return how many stages of so many GPUs each fill a domain, where stages in a row fill one after the other and
    leave no GPU of any machine free between them; else 0."""
    even = pool.gpus_per_node % gpus == 0 and pool.domain_gpus % gpus == 0
    return pool.domain_gpus // gpus if even else 0
