"""Which machines may go on, where nobody answers, where others are gone, and where others have gone on."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import _free_ports
from tests.runtime.recovery.store import store

from shardwright.recovery.quorum import Generation, Machine
from shardwright.runtime.recovery.arbiter import GRACE, Arbiter, MinorityError
from shardwright.runtime.recovery.tiers import Cloud

SILENCE = 5.0


def generation(number: int = 4) -> Generation:
    """Return a generation of three machines, at whose addresses nobody listens."""
    ports = _free_ports(3)
    machines = (Machine(name=f"m{n}", host="127.0.0.1", port=port, gpu="A", gpus=1) for n, port in enumerate(ports))
    return Generation(number=number, machines=tuple(machines))


@contextmanager
def there(before: Generation, names: Collection[str]) -> Iterator[None]:
    """Have machines listen, which say nothing."""
    listening = [socket.create_server(m.address) for m in before.machines if m.name in names]
    try:
        yield
    finally:
        for one in listening:
            one.close()


def arbiter(me: str, cloud: Cloud | None) -> Arbiter:
    return Arbiter(me=me, run="r", cloud=cloud, silence_seconds=SILENCE, wait_seconds=600.0)


def may(before: Generation, present: Collection[str], cloud: Cloud | None, *, alone_seconds: float = -inf) -> bool:
    """Return whether machines, the first of which coordinates, may go on."""
    try:
        asyncio.run(arbiter(min(present), cloud).require(before, sorted(present), time.monotonic() - alone_seconds))
    except MinorityError:
        return False
    return True


def test_a_coordinator_that_was_cut_off_leaves_the_claim_to_the_majority(tmp_path: Path) -> None:
    """It could claim at once, as the others only find the loss. It waits, and finds that they have."""
    before, cloud = generation(), Cloud(f"file://{tmp_path}")
    with there(before, ("m1", "m2")):
        assert not may(before, {"m0"}, cloud), "it has just lost them"
        assert not may(before, {"m0"}, cloud, alone_seconds=SILENCE)
        assert may(before, {"m1", "m2"}, cloud)
        assert not may(before, {"m0"}, cloud, alone_seconds=GRACE * SILENCE)


def test_a_minority_goes_on_when_no_majority_has_in_time(tmp_path: Path) -> None:
    before, cloud = generation(), Cloud(f"file://{tmp_path}")
    with there(before, ("m0", "m1", "m2")):
        assert may(before, {"m0"}, cloud, alone_seconds=GRACE * SILENCE)
        assert not may(before, {"m1", "m2"}, cloud), "m0 trains"
        assert not may(before, {"m0"}, None, alone_seconds=GRACE * SILENCE), "there is nobody to decide"
        assert may(before, {"m0"}, None, alone_seconds=601.0)


def test_a_minority_goes_on_at_once_where_nobody_listens_any_more(tmp_path: Path) -> None:
    before = generation()
    with there(before, ("m1",)):
        assert not may(before, {"m0"}, None)
    assert may(before, {"m0"}, None)
    assert may(before, {"m0"}, Cloud(f"file://{tmp_path}"))


def test_a_machine_that_claimed_and_could_not_start_is_held_up_by_its_claim_only_beside_others(tmp_path: Path) -> None:
    """Two of three claimed, and one was lost before they started: the other may have gone on with the third."""
    before, cloud = generation(), Cloud(f"file://{tmp_path}")
    with there(before, ("m1",)):
        assert may(before, {"m0", "m1"}, cloud)
        assert not may(before, {"m0"}, cloud, alone_seconds=GRACE * SILENCE), "m1 may be training with m2"
    assert may(before, {"m0"}, cloud), "now it is gone"


def test_a_machine_that_returns_waits_for_those_that_went_on_twice_without_it(tmp_path: Path) -> None:
    """Those that it knows are gone by now, but one that came later trains."""
    before, cloud = generation(4), Cloud(f"file://{tmp_path}")
    assert may(before, {"m1", "m2"}, cloud)
    machines = [Machine(name="m3", host="127.0.0.1", port=1, gpu="A", gpus=1), *before.machines[1:]]
    after = Generation(number=5, machines=tuple(machines))
    assert may(after, {"m3"}, cloud)
    assert not may(before, {"m0"}, cloud, alone_seconds=inf)
    assert not may(before, {"m0", "m1"}, cloud), "not even with one that was started anew"


def test_a_run_that_is_started_again_in_its_store_takes_numbers_that_were_never_claimed(tmp_path: Path) -> None:
    """Else its first loss would find a claim of the run before, and wait for machines that are long gone."""
    cloud = Cloud(f"file://{tmp_path}")
    first, second = arbiter("m0", cloud), arbiter("m1", cloud)
    assert asyncio.run(first.first_free()) == 0
    nobody = Generation(number=0, machines=())
    assert asyncio.run(first.require(nobody, ["m0", "m1"], inf))
    assert asyncio.run(first.require(nobody, ["m0"], inf)), "it tries again"
    with pytest.raises(MinorityError, match="m0 with a majority is to go on"):
        asyncio.run(second.require(nobody, ["m1"], inf))
    assert may(generation(1), {"m1"}, cloud)
    assert asyncio.run(second.first_free()) == 2
    again = generation(3)
    assert may(again, {"m0", "m2"}, cloud)


def test_a_store_that_does_not_answer_stops_a_minority_alone() -> None:
    before = generation()
    with store() as (server, url):
        server.fault = "503"
        assert asyncio.run(arbiter("m0", Cloud(url)).first_free()) == 0
        assert may(before, {"m0", "m1"}, Cloud(url))
        assert not may(before, {"m0"}, Cloud(url), alone_seconds=inf)
