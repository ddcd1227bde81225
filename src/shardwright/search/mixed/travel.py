"""How many layers a stage's gradients and weights allow where little may be left to do after the pipeline.

The stage at position i has, for its gradients and weights to travel, its own passes, those of the i stages before it,
and A seconds after the pipeline: k rho <= A + i tau, with rho the seconds of a layer's gradients and weights beyond
what their own passes hide. All is at its best: as many copies in a domain as can be.

The slowest links among a layer's holders decide. A replica all of whose types have links of `link` or slower holds
every layer, and so no layer is reduced faster: a region is the plans whose slowest such replica is limited by `link`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.collectives import Group, gather_seconds
from shardwright.cost.layers import OVERLAP_SLOWDOWN
from shardwright.cost.step import BUCKET_SHARE
from shardwright.cost.strategy import Floats
from shardwright.search.mixed.stage_limits import IMPOSSIBLE, SLACK
from shardwright.search.mixed.tables import Layers, Table

HIDDEN = BUCKET_SHARE * (1.0 - OVERLAP_SLOWDOWN)  # part of a pass that overlapped communication does not add to
REDUCED, GATHERED = 4.0, 2.0  # bytes of a parameter that are reduced as gradient and gathered as weight


def byte_seconds(table: Table, parameters: Floats, fewest: int, link: float, *, beside: Sequence[int] = ()) -> Floats:
    """Return the least seconds to gather one byte of each of up to `parameters` [G] from `fewest` copies or more, per
    parameter, [G]. The time grows with copies, and less than in proportion with parameters. With copies on the types
    `beside`, not all stand in one domain, and their links and domains count, too."""
    if fewest < 2:
        return np.zeros(table.types)
    found, others = np.zeros(table.types), list(beside)
    link = min(link, float(table.links[others].min(initial=np.inf)))
    for kind, fabric in enumerate(table.fabrics):
        links = replace(fabric, inter_bytes_per_second=min(fabric.inter_bytes_per_second, link))
        most = int(min([table.local[kind], *table.local[others]] if others else [table.local[kind], fewest]))
        local = np.arange(1, most + 1)
        groups = Group(size=np.maximum(fewest, local + 1 if others else local), local=local)
        found[kind] = gather_seconds(links, groups, parameters[kind]).min() / parameters[kind]
    return found


def layers_in_time(
    table: Table,
    layers: Layers,
    seconds: Floats,
    depth: int,
    *,
    copies: tuple[int, int],
    most_after: float,
    link: float,
) -> tuple[Floats, Floats, Floats]:
    """Return the most layers at each position for bottlenecks `seconds` [J], as [G, J, depth], between the ends; those
    of the first stage, which has the embedding, [G]; and of the last one, which has the head, [G, J, depth]. `copies`
    are the fewest and the most."""
    shape, fewest = (table.types, len(seconds), depth), copies[0]
    if not np.isfinite(most_after) or fewest < 2:
        everything = np.full(shape, layers.total)
        return everything, everything[:, 0, 0], everything
    parameters = layers.dense + layers.expert
    most = layers.total * parameters + layers.first_parameters + layers.last_parameters
    once = byte_seconds(table, most, fewest, link) * table.trained
    update = table.update_seconds / copies[1]
    rest = update * parameters
    for width, passing in ((REDUCED, layers.backward), (GATHERED, layers.forward)):
        each = width * once * parameters
        rest = rest + np.maximum(OVERLAP_SLOWDOWN * each, each - HIDDEN * passing)
    given = most_after - table.step_seconds + HIDDEN * 2.0 * table.each
    room = given[:, None, None] + np.arange(depth)[None, None, :] * seconds[None, :, None]

    def held(more: Floats, passing: Floats) -> Floats:
        """Return the layers beside `more` parameters whose own passes take `passing` seconds."""
        each = (REDUCED + GATHERED) * once * more
        beside = update * more + np.maximum(OVERLAP_SLOWDOWN * each, each - HIDDEN * passing)
        left = room - beside[:, None, None]
        found = np.minimum(left / np.maximum(rest, 1e-300)[:, None, None], layers.total)
        found = np.floor(found + SLACK) if layers.whole else found
        return np.where(found >= (1.0 if layers.whole else 0.0), found, IMPOSSIBLE)

    nothing = np.zeros(table.types)
    first = held(layers.first_parameters, layers.first_seconds)[:, 0, 0]
    return held(nothing, nothing), first, held(layers.last_parameters, layers.last_seconds)


def single_stage_seconds(table: Table, parameters: Floats, fewest: int, link: float, used: tuple[int, ...]) -> Floats:
    """Return the least seconds of gradients and weights after the passes of a replica of one stage that holds
    `parameters` [G], beside replicas that have all of the types `used`."""
    beside = used if len(used) > 1 else ()
    once = byte_seconds(table, parameters, fewest, link, beside=beside) * parameters * table.trained
    seconds = np.zeros(table.types)
    for width, passing in ((REDUCED, table.backward[:, -1]), (GATHERED, table.forward[:, -1])):
        seconds += np.maximum(width * once - HIDDEN * (passing + table.each), OVERLAP_SLOWDOWN * width * once)
    return seconds
