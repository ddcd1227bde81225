"""Which machine reads which shard from where after a loss, so that the last of them is done soonest.

A need is met from its machine's own memory where that has the shard, else from its own disk or from the memory and
disks of others, else, where it survives nowhere, from the cloud. Between own disk and the others a linear program
decides (`solve`); a shard may come in several ranges of bytes from several sources, so its optimum is reached but for
rounding to whole grains. Links are shared fluidly: a plan takes as long as its busiest resource. The program:

    min T   over  x_h >= 0  copies of its shard that holding h sends,  0 <= d_k <= 1  part of need k from its own disk
    (1) sum_h x_h + sum_k d_k = n_i           for every shard i that n_i machines need
    (2) sum_h b_h x_h <= T up_m               over the holdings of machine m
    (3) sum_h b_h x_h + sum_k b_k d_k <= T disk_m    over what machine m holds on disk
    (4) a_m - sum_k b_k d_k <= T down_m       a_m: all that machine m needs and has not in memory, the cloud's too
    (5) T >= the seconds of what has no choice

Sources of a shard are not told apart by whom they serve: any split of the copies over the needs loads all links alike.
A copy that a holding "sends" to its own machine only eases (2) and (4), so the optimum bounds every plan from below.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints
from shardwright.highs import by_columns, highs, status
from shardwright.records import record


@record
class OpenNeeds:
    """Needs [K] that are not met from memory, with whether the machine has the shard on its disk; sources [H] of their
    shards, in the order of the shards; the shards' bytes [N]."""

    sizes: Floats
    need_shard: Ints
    need_machine: Ints
    on_own_disk: Bools
    source_shard: Ints
    source_machine: Ints
    source_on_disk: Bools


@record
class TransferSolution:
    """The copies that each source sends [H], the part of each need from its own disk [K], and the least seconds."""

    copies: Floats
    own_disk: Floats
    bound_seconds: float


def solve(
    choices: OpenNeeds, *, up: Floats, down: Floats, disk: Floats, arriving_bytes: Floats, least_seconds: float
) -> TransferSolution:
    """Return the optimum for links of `up`, `down` and `disk` bytes per second [M]; `arriving_bytes` [M] come from the
    cloud in any case."""
    if not len(choices.need_shard):
        return TransferSolution(copies=np.zeros(0), own_disk=np.zeros(0), bound_seconds=least_seconds)
    machines, on_own_disk = len(up), np.flatnonzero(choices.on_own_disk)
    sources, width = len(choices.source_shard), 1 + len(choices.source_shard) + len(on_own_disk)
    shards, row_of_shard = np.unique(choices.need_shard, return_inverse=True)
    wanted = np.bincount(row_of_shard).astype(np.float64)
    unit = float(choices.sizes.max(initial=1.0))  # bytes are counted in the largest shard, for the solver's tolerances
    source_bytes = choices.sizes[choices.source_shard] / unit
    own_bytes = choices.sizes[choices.need_shard[on_own_disk]] / unit
    own_machine = choices.need_machine[on_own_disk]
    every, from_disk = np.arange(sources), np.flatnonzero(choices.source_on_disk)
    column, own_column = 1 + every, 1 + sources + np.arange(len(on_own_disk))
    ones, machine, first = np.ones, np.arange(machines), len(shards)
    entries = [
        (np.searchsorted(shards, choices.source_shard), column, ones(sources)),
        (row_of_shard[on_own_disk], own_column, ones(len(on_own_disk))),
        (first + choices.source_machine, column, source_bytes),
        (first + machine, np.zeros(machines, dtype=np.int64), -up / unit),
        (first + machines + choices.source_machine[from_disk], column[from_disk], source_bytes[from_disk]),
        (first + machines + own_machine, own_column, own_bytes),
        (first + machines + machine, np.zeros(machines, dtype=np.int64), -disk / unit),
        (first + 2 * machines + own_machine, own_column, -own_bytes),
        (first + 2 * machines + machine, np.zeros(machines, dtype=np.int64), -down / unit),
    ]
    needed = np.bincount(choices.need_machine, weights=choices.sizes[choices.need_shard], minlength=machines)
    limits = np.concatenate([np.zeros(2 * machines), -(arriving_bytes + needed) / unit])
    row, place, value = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    solver = highs(
        np.append(1.0, np.zeros(width - 1)),
        by_columns(row, place, value, width),
        lower=np.append(least_seconds, np.zeros(width - 1)),
        upper=np.concatenate([[np.inf], np.full(sources, np.inf), np.ones(len(on_own_disk))]),
        row_lower=np.concatenate([wanted, np.full(3 * machines, -np.inf)]),
        row_upper=np.concatenate([wanted, limits]),
        settings={},
    )
    solver.run()
    assert status(solver) == "optimal", "every need has a source"
    values = np.array(solver.getSolution().col_value)
    parts = np.zeros(len(choices.need_shard))
    parts[on_own_disk] = np.clip(values[1 + sources :], 0.0, 1.0)
    return TransferSolution(
        copies=np.maximum(values[1 : 1 + sources], 0.0), own_disk=parts, bound_seconds=float(values[0])
    )


MEMORY, DISK, CLOUD = 0, 1, 2
TIERS = ("memory", "disk", "cloud")
NOWHERE = -1  # the source of what comes from the cloud
GRAIN_BYTES = 65_536  # ranges of a shard begin at multiples of this


@record
class Bandwidths:
    """Bytes per second of each of M machines, [M]: from and to other machines, copying memory, reading its disk, and
    from the cloud; and what all machines together get from the cloud."""

    up: Floats
    down: Floats
    memory: Floats
    disk: Floats
    cloud: Floats
    cloud_together: float = np.inf

    @property
    def machines(self) -> int:
        return len(self.up)


@record
class Holdings(Columns):
    """Who holds which shard, [H]: its number, the machine, and the tier, memory or disk."""

    shard: Ints
    machine: Ints
    tier: Ints


@record
class Needs(Columns):
    """Which machine needs which shard, [K]; each pair once."""

    shard: Ints
    machine: Ints


@record
class Transfers(Columns):
    """Ranges of bytes [start, stop) of shards from a tier of a source to a target, [T], sorted by target and shard."""

    shard: Ints
    source: Ints
    tier: Ints
    target: Ints
    start: Ints
    stop: Ints

    @property
    def size_bytes(self) -> Ints:
        return self.stop - self.start

    @property
    def local(self) -> Bools:
        """Whether a range stays on its machine."""
        return np.equal(self.source, self.target)


@record
class TransferPlan:
    """What moves; `lost` are the numbers of needs that nothing can meet. No plan in which each machine reads what it
    needs from those that hold it now takes less than `bound_seconds`."""

    transfers: Transfers
    lost: Ints
    seconds: float
    bound_seconds: float


def plan_transfers(
    sizes: Ints, needs: Needs, holdings: Holdings, in_cloud: Bools, bandwidths: Bandwidths
) -> TransferPlan:
    """Return the plan that finishes soonest for shards of `sizes` bytes [N], `in_cloud` [N] or not.

    Nothing that a machine holds is read from the cloud, though that could be sooner: it costs egress.
    """
    holdings = _best_tiers(holdings, bandwidths.machines)
    held_there = _table(holdings, len(sizes), bandwidths.machines)[needs.shard, needs.machine]
    survives = np.isin(np.arange(len(sizes)), holdings.shard)
    held = survives[needs.shard]
    from_memory = held_there == MEMORY
    from_cloud = ~held & in_cloud[needs.shard]
    lost = np.flatnonzero(~held & ~from_cloud)
    open_needs = np.flatnonzero(held & ~from_memory)
    local, remote = needs.take(from_memory), needs.take(from_cloud)
    fixed = Transfers.concatenated(
        [
            _beginnings(local, local.machine, MEMORY, sizes[local.shard]),
            _beginnings(remote, np.full_like(remote.machine, NOWHERE), CLOUD, sizes[remote.shard]),
        ]
    )
    chosen, bound = _chosen(sizes, needs.take(open_needs), held_there[open_needs] == DISK, holdings, fixed, bandwidths)
    transfers = Transfers.concatenated([fixed, chosen])
    transfers = transfers.take(np.lexsort((transfers.start, transfers.shard, transfers.target)))
    seconds = busy_seconds(transfers, bandwidths)
    return TransferPlan(transfers=transfers, lost=lost, seconds=seconds, bound_seconds=min(bound, seconds))


def busy_seconds(transfers: Transfers, bandwidths: Bandwidths) -> float:
    """Return the seconds of the busiest link, memory, disk or way to the cloud."""
    return max(float(busy.max(initial=0.0)) for busy in resource_seconds(transfers, bandwidths).values())


def resource_seconds(transfers: Transfers, bandwidths: Bandwidths) -> dict[str, Floats]:
    """Return for how many seconds each kind of resource of each machine is busy, [M]; "cloud together" is one."""
    size = transfers.size_bytes.astype(np.float64)
    remote, cloud = ~transfers.local, transfers.tier == CLOUD
    machines = bandwidths.machines

    def load(machine: Ints, chosen: Bools, rate: Floats) -> Floats:
        return np.bincount(machine[chosen], weights=size[chosen], minlength=machines) / rate

    return {
        "up": load(transfers.source, remote & ~cloud, bandwidths.up),
        "down": load(transfers.target, remote, bandwidths.down),
        "memory": load(transfers.target, transfers.local & (transfers.tier == MEMORY), bandwidths.memory),
        "disk": load(transfers.source, transfers.tier == DISK, bandwidths.disk),
        "cloud": load(transfers.target, cloud, bandwidths.cloud),
        "cloud together": np.array([size[cloud].sum() / bandwidths.cloud_together]),
    }


def _chosen(
    sizes: Ints, needs: Needs, on_own_disk: Bools, holdings: Holdings, fixed: Transfers, bandwidths: Bandwidths
) -> tuple[Transfers, float]:
    """Return what meets the needs that have a choice, and the bound on the seconds of the whole."""
    wanted = np.bincount(needs.shard, minlength=len(sizes))
    order = np.argsort(holdings.shard, kind="stable")
    sources = holdings.take(order[wanted[holdings.shard[order]] > 0])
    choices = OpenNeeds(
        sizes=sizes.astype(np.float64),
        need_shard=needs.shard,
        need_machine=needs.machine,
        on_own_disk=on_own_disk,
        source_shard=sources.shard,
        source_machine=sources.machine,
        source_on_disk=sources.tier == DISK,
    )
    fixed_seconds = resource_seconds(fixed, bandwidths)
    solution = solve(
        choices,
        up=bandwidths.up,
        down=bandwidths.down,
        disk=bandwidths.disk,
        arriving_bytes=fixed_seconds["down"] * bandwidths.down,
        least_seconds=busy_seconds(fixed, bandwidths),
    )
    line = _Line(
        need_shard=needs.shard,
        need_length=1.0 - solution.own_disk,
        source_shard=choices.source_shard,
        source_length=solution.copies,
    )
    need, source, begin, end = line.segments()
    whole = sizes[needs.shard[need]]
    remote = Transfers(
        shard=needs.shard[need],
        source=choices.source_machine[source],
        tier=np.where(choices.source_on_disk[source], DISK, MEMORY),
        target=needs.machine[need],
        start=_grain(solution.own_disk[need] + begin, whole),
        stop=_grain(solution.own_disk[need] + end, whole),
    )
    from_disk = _beginnings(needs, needs.machine, DISK, _grain(solution.own_disk, sizes[needs.shard]))
    both = Transfers.concatenated([from_disk, remote])
    return both.take(both.size_bytes > 0), solution.bound_seconds


@record
class _Line:
    """Needs and sources laid side by side along a line, shard after shard: each need is as long as the part of it that
    others send, each source as the copies that it sends. Where they overlap, the source serves the need."""

    need_shard: Ints
    need_length: Floats
    source_shard: Ints
    source_length: Floats

    def segments(self) -> tuple[Ints, Ints, Floats, Floats]:
        """Return need, source, and [begin, end) within the need's part, of every overlap."""
        order = np.argsort(self.need_shard, kind="stable")
        ends, source_ends = np.cumsum(self.need_length[order]), self._source_ends()
        cuts = np.unique(np.concatenate([[0.0], ends, source_ends]))
        middle = (cuts[1:] + cuts[:-1]) / 2
        need = np.minimum(np.searchsorted(ends, middle), max(len(ends) - 1, 0))
        source = np.minimum(np.searchsorted(source_ends, middle), max(len(source_ends) - 1, 0))
        starts = ends - self.need_length[order]
        return order[need], source, cuts[:-1] - starts[need], cuts[1:] - starts[need]

    def _source_ends(self) -> Floats:
        """Return where sources end, stretched so that those of each shard end where its needs do."""
        shards = int(max(self.need_shard.max(initial=-1), self.source_shard.max(initial=-1))) + 1
        wanted = np.bincount(self.need_shard, weights=self.need_length, minlength=shards)
        given = np.bincount(self.source_shard, weights=self.source_length, minlength=shards)
        stretch = np.divide(wanted, given, out=np.zeros(shards), where=given > 0)
        return np.cumsum(self.source_length * stretch[self.source_shard])


def _grain(part: Floats, size: Ints) -> Ints:
    """Return where a part of so many bytes ends, rounded to whole grains of the shard."""
    grains = np.round(part * size / GRAIN_BYTES).astype(np.int64) * GRAIN_BYTES
    return np.where(part >= 1.0 - 1e-9, size, np.minimum(grains, size))


def _beginnings(needs: Needs, source: Ints, tier: int, stop: Ints) -> Transfers:
    """Return the first `stop` bytes of each needed shard, from a tier of the machines `source`."""
    return Transfers(
        shard=needs.shard,
        source=source,
        tier=np.full_like(needs.shard, tier),
        target=needs.machine,
        start=np.zeros_like(needs.shard),
        stop=stop,
    )


def _best_tiers(holdings: Holdings, machines: int) -> Holdings:
    """Return the holdings without what a machine has in a faster tier too."""
    key = holdings.shard * machines + holdings.machine
    order = np.lexsort((holdings.tier, key))
    first = np.append(True, key[order][1:] != key[order][:-1]) if len(order) else np.zeros(0, dtype=bool)
    return holdings.take(order[first])


def _table(holdings: Holdings, shards: int, machines: int) -> Ints:
    """Return the tier in which each machine has each shard, [N, M]; CLOUD where it has it not."""
    table = np.full((shards, machines), CLOUD)
    table[holdings.shard, holdings.machine] = holdings.tier
    return table
