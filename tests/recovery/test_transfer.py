"""Transfer plans: everything needed arrives once, from those that have it, and no plan could be done much sooner."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.recovery.transfer import (
    CLOUD,
    DISK,
    MEMORY,
    NOWHERE,
    Bandwidths,
    Holdings,
    Needs,
    TransferPlan,
    Transfers,
    busy_seconds,
    plan_transfers,
    resource_seconds,
)

MIB = 2**20


class Case:
    """Random shards, holders and needs. In one bound by uplinks few machines hold all, and every machine needs much."""

    def __init__(
        self, seed: int, *, machines: int, shards: int, uplink_bound: bool = False, cloud: float = 1.0
    ) -> None:
        random = np.random.default_rng(seed)
        self.sizes = random.integers(1, 64, size=shards) * MIB
        holders = np.arange(max(machines // 8, 2)) if uplink_bound else np.arange(machines)
        held = np.unique(np.stack([np.repeat(np.arange(shards), 2), random.choice(holders, 2 * shards)]), axis=1)
        held = held[:, random.random(held.shape[1]) < (1.0 if uplink_bound else 0.9)]
        tier = np.less(random.random(held.shape[1]), 0.3).astype(np.int64)
        self.holdings = Holdings(shard=held[0], machine=held[1], tier=tier)
        wanted = np.unique(
            np.stack([np.repeat(np.arange(shards), 3), random.integers(machines, size=3 * shards)]), axis=1
        )
        self.needs = Needs(shard=wanted[0], machine=wanted[1])
        self.in_cloud = random.random(shards) < cloud
        fast = 10.0 if uplink_bound else 1.0
        self.bandwidths = Bandwidths(
            up=random.uniform(1e9, 4e9, machines),
            down=random.uniform(1e9, 4e9, machines) * fast,
            memory=random.uniform(8e9, 12e9, machines),
            disk=random.uniform(1e9, 3e9, machines) * fast,
            cloud=random.uniform(2e8, 1e9, machines) * fast,
            cloud_together=5e9 * fast,
        )

    def plan(self) -> TransferPlan:
        return plan_transfers(self.sizes, self.needs, self.holdings, self.in_cloud, self.bandwidths)


def require_sound(case: Case, plan: TransferPlan) -> None:
    """Each need arrives exactly once, byte for byte, from a place that has it; only what is nowhere is lost."""
    held = set(
        zip(case.holdings.shard.tolist(), case.holdings.machine.tolist(), case.holdings.tier.tolist(), strict=True)
    )
    holders = set(case.holdings.shard.tolist())
    arriving: dict[tuple[int, int], list[tuple[int, int]]] = {}
    t = plan.transfers
    for shard, source, tier, target, start, stop in zip(
        t.shard.tolist(),
        t.source.tolist(),
        t.tier.tolist(),
        t.target.tolist(),
        t.start.tolist(),
        t.stop.tolist(),
        strict=True,
    ):
        assert start < stop
        arriving.setdefault((shard, target), []).append((start, stop))
        if tier == CLOUD:
            assert source == NOWHERE and case.in_cloud[shard] and shard not in holders
        else:
            assert (shard, source, tier) in held
        assert (shard, target, MEMORY) not in held or (source, tier) == (target, MEMORY)
    lost = set(plan.lost.tolist())
    for number, pair in enumerate(zip(case.needs.shard.tolist(), case.needs.machine.tolist(), strict=True)):
        if number in lost:
            assert pair[0] not in holders and not case.in_cloud[pair[0]] and pair not in arriving
            continue
        ranges = sorted(arriving.pop(pair))
        assert ranges[0][0] == 0 and ranges[-1][1] == case.sizes[pair[0]]
        assert all(one[1] == other[0] for one, other in pairwise(ranges))
    assert not arriving, "nothing moves that nobody needs"


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 12), st.booleans(), st.floats(0, 1))
def test_what_is_needed_arrives_once_from_those_that_have_it(
    seed: int, machines: int, shards: int, uplink_bound: bool, cloud: float
) -> None:
    case = Case(seed, machines=max(machines, 2), shards=shards, uplink_bound=uplink_bound, cloud=cloud)
    plan = case.plan()
    require_sound(case, plan)
    assert plan.bound_seconds <= plan.seconds


@pytest.mark.parametrize("uplink_bound", [False, True])
def test_a_plan_is_within_5_percent_of_the_bound(uplink_bound: bool) -> None:
    """100 cases each; in those bound by uplinks, uplinks or the disks behind them are what is busy longest."""
    behind = 0
    for seed in range(100):
        case = Case(seed, machines=24, shards=60, uplink_bound=uplink_bound)
        plan = case.plan()
        assert plan.seconds <= 1.05 * plan.bound_seconds
        busy = {
            name: float(seconds.max()) for name, seconds in resource_seconds(plan.transfers, case.bandwidths).items()
        }
        behind += max(busy, key=lambda name: busy[name]) == "up"
    assert behind >= 95 if uplink_bound else behind <= 50


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_of_whole_sources_is_better_or_below_the_bound(seed: int) -> None:
    case = Case(seed, machines=4, shards=3, uplink_bound=seed % 2 == 0)
    plan, best = case.plan(), brute_force(case)
    assert plan.bound_seconds <= best * (1 + 1e-9)
    assert plan.seconds <= best * 1.01


def brute_force(case: Case) -> float:
    """Return the seconds of the best plan in which each need has one source, own memory first, the cloud last."""
    options = []
    for shard, machine in zip(case.needs.shard.tolist(), case.needs.machine.tolist(), strict=True):
        rows = np.flatnonzero(case.holdings.shard == shard)
        found = [(int(case.holdings.machine[r]), int(case.holdings.tier[r])) for r in rows]
        if (machine, MEMORY) in found:
            found = [(machine, MEMORY)]
        options.append(found or ([(NOWHERE, CLOUD)] if case.in_cloud[shard] else []))
    meant = [number for number, found in enumerate(options) if found]
    shard, target = case.needs.shard[meant], case.needs.machine[meant]
    best = np.inf
    for chosen in product(*(options[number] for number in meant)):
        source, tier = np.array(chosen, dtype=np.int64).reshape(-1, 2).T
        transfers = Transfers(
            shard=shard, source=source, tier=tier, target=target, start=np.zeros_like(shard), stop=case.sizes[shard]
        )
        best = min(best, busy_seconds(transfers, case.bandwidths))
    return best


def bandwidths(machines: int, **rates: float) -> Bandwidths:
    given = {"up": 1e9, "down": 1e9, "memory": 1e10, "disk": 2e9, "cloud": 1e8} | rates
    return Bandwidths(**{name: np.full(machines, rate) for name, rate in given.items()})


def plan_of(size: int, needed_by: list[int], held: list[tuple[int, int]], rates: Bandwidths) -> TransferPlan:
    """Return the plan for one shard of `size` bytes; `held` has (machine, tier)."""
    machine, tier = np.array(held, dtype=np.int64).reshape(-1, 2).T
    return plan_transfers(
        np.array([size]),
        Needs(shard=np.zeros(len(needed_by), dtype=np.int64), machine=np.array(needed_by)),
        Holdings(shard=np.zeros(len(held), dtype=np.int64), machine=machine, tier=tier),
        np.array([True]),
        rates,
    )


def test_two_holders_send_half_each() -> None:
    plan = plan_of(64 * MIB, [2], [(0, MEMORY), (1, MEMORY)], bandwidths(3, down=1e12))
    assert plan.seconds == pytest.approx(32 * MIB / 1e9)
    assert sorted(plan.transfers.source.tolist()) == [0, 1]


def test_a_slow_disk_of_ones_own_is_read_beside_a_fast_link() -> None:
    plan = plan_of(300 * MIB, [0], [(0, DISK), (1, MEMORY)], bandwidths(2, disk=1e9, up=2e9, down=2e9))
    assert plan.seconds == pytest.approx(100 * MIB / 1e9, rel=1e-3)


def test_the_cloud_serves_only_what_survives_nowhere() -> None:
    rates = bandwidths(2, up=1.0, cloud=1e12)
    assert plan_of(MIB, [0], [(1, DISK)], rates).transfers.tier.tolist() == [DISK]
    assert plan_of(MIB, [0], [], rates).transfers.tier.tolist() == [CLOUD]


def test_if_all_survive_in_their_own_memory_nothing_travels() -> None:
    plan = plan_of(MIB, [0, 1], [(0, MEMORY), (1, MEMORY)], bandwidths(2))
    assert plan.transfers.local.all()
    assert plan.seconds == plan.bound_seconds == pytest.approx(MIB / 1e10)


def test_many_machines_with_many_shards() -> None:
    case = Case(0, machines=128, shards=1008, uplink_bound=True)
    plan = case.plan()
    require_sound(case, plan)
    assert plan.seconds <= 1.05 * plan.bound_seconds
