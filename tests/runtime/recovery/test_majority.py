"""Which machines may go on, where nobody answers, where others are gone, and where others have gone on."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import _free_ports
from tests.runtime.recovery.store import store

from shardwright.recovery.quorum import Generation, Machine
from shardwright.runtime.recovery.fleet.membership import GRACE, ClaimStore, Etcd, MinorityError, QuorumCheck
from shardwright.runtime.recovery.state.cloud import Cloud

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


@pytest.fixture(params=["store", "etcd"])
def claim_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClaimStore]:
    """Yield an object store, or an etcd where that is installed."""
    if request.param == "store":
        yield Cloud(f"file://{tmp_path}")
        return
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed")
    client, peer = _free_ports(2)
    words = ["etcd", "--data-dir", tmp_path / "etcd", "--listen-client-urls", f"http://127.0.0.1:{client}"]
    words += ["--advertise-client-urls", f"http://127.0.0.1:{client}", "--listen-peer-urls", f"http://127.0.0.1:{peer}"]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        found = Etcd(members=[("127.0.0.1", 1), ("127.0.0.1", client)])
        while True:
            with suppress(OSError):
                found.claims("r")
                break
            time.sleep(0.05)
        yield found
        process.kill()


def quorum_check(me: str, claim_store: ClaimStore | None) -> QuorumCheck:
    return QuorumCheck(me=me, run="r", claim_store=claim_store, silence_seconds=SILENCE, wait_seconds=600.0)


def may(
    before: Generation, present: Collection[str], claim_store: ClaimStore | None, *, alone_seconds: float = -inf
) -> bool:
    """Return whether machines, the first of which coordinates, may go on."""
    try:
        asyncio.run(
            quorum_check(min(present), claim_store).require(before, sorted(present), time.monotonic() - alone_seconds)
        )
    except MinorityError:
        return False
    return True


def test_a_coordinator_that_was_cut_off_leaves_the_claim_to_the_majority(claim_store: ClaimStore) -> None:
    """It could claim at once, as the others only find the loss. It waits, and finds that they have."""
    before = generation()
    with there(before, ("m1", "m2")):
        assert not may(before, {"m0"}, claim_store), "it has just lost them"
        assert not may(before, {"m0"}, claim_store, alone_seconds=SILENCE)
        assert may(before, {"m1", "m2"}, claim_store)
        assert not may(before, {"m0"}, claim_store, alone_seconds=GRACE * SILENCE)


def test_a_minority_goes_on_when_no_majority_has_in_time(claim_store: ClaimStore) -> None:
    before = generation()
    with there(before, ("m0", "m1", "m2")):
        assert may(before, {"m0"}, claim_store, alone_seconds=GRACE * SILENCE)
        assert not may(before, {"m1", "m2"}, claim_store), "m0 trains"
        assert not may(before, {"m0"}, None, alone_seconds=GRACE * SILENCE), "there is nobody to decide"
        assert may(before, {"m0"}, None, alone_seconds=601.0)


def test_a_minority_goes_on_at_once_where_nobody_listens_any_more(claim_store: ClaimStore) -> None:
    before = generation()
    with there(before, ("m1",)):
        assert not may(before, {"m0"}, None)
    assert may(before, {"m0"}, None)
    assert may(before, {"m0"}, claim_store)


def test_a_machine_that_claimed_and_could_not_start_is_held_up_by_its_claim_only_beside_others(
    claim_store: ClaimStore,
) -> None:
    """Two of three claimed, and one was lost before they started: the other may have gone on with the third."""
    before = generation()
    with there(before, ("m1",)):
        assert may(before, {"m0", "m1"}, claim_store)
        assert not may(before, {"m0"}, claim_store, alone_seconds=GRACE * SILENCE), "m1 may be training with m2"
    assert may(before, {"m0"}, claim_store), "now it is gone"


def test_a_machine_that_returns_waits_for_those_that_went_on_twice_without_it(claim_store: ClaimStore) -> None:
    """Those that it knows are gone by now, but one that came later trains."""
    before = generation(4)
    assert may(before, {"m1", "m2"}, claim_store)
    machines = [Machine(name="m3", host="127.0.0.1", port=1, gpu="A", gpus=1), *before.machines[1:]]
    after = Generation(number=5, machines=tuple(machines))
    assert may(after, {"m3"}, claim_store)
    assert not may(before, {"m0"}, claim_store, alone_seconds=inf)
    assert not may(before, {"m0", "m1"}, claim_store), "not even with one that was started anew"


def test_a_run_that_is_started_again_in_its_store_takes_numbers_that_were_never_claimed(
    claim_store: ClaimStore,
) -> None:
    """Else its first loss would find a claim of the run before, and wait for machines that are long gone."""
    first, second = quorum_check("m0", claim_store), quorum_check("m1", claim_store)
    assert asyncio.run(first.first_free()) == 0
    nobody = Generation(number=0, machines=())
    assert asyncio.run(first.require(nobody, ["m0", "m1"], inf))
    assert asyncio.run(first.require(nobody, ["m0"], inf)), "it tries again"
    with pytest.raises(MinorityError, match="m0 with a majority is to go on"):
        asyncio.run(second.require(nobody, ["m1"], inf))
    assert may(generation(1), {"m1"}, claim_store)
    assert asyncio.run(second.first_free()) == 2
    again = generation(3)
    assert may(again, {"m0", "m2"}, claim_store)


def test_a_store_that_does_not_answer_stops_a_minority_alone() -> None:
    before = generation()
    with store() as (server, url):
        server.fault = "503"
        assert asyncio.run(quorum_check("m0", Cloud(url)).first_free()) == 0
        assert may(before, {"m0", "m1"}, Cloud(url))
        assert not may(before, {"m0"}, Cloud(url), alone_seconds=inf)


def test_an_etcd_that_does_not_answer_stops_a_minority_alone() -> None:
    before, gone = generation(), Etcd(members=[("127.0.0.1", 1)])
    assert may(before, {"m0", "m1"}, gone)
    assert not may(before, {"m0"}, gone, alone_seconds=inf)
