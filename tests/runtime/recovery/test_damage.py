"""Damaged state and failing tiers: found, named, had from elsewhere; and a clear stop where it is nowhere."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.recovery.fleet import PATIENCE_SECONDS, Fleet, copies
from tests.runtime.recovery.store import store

from shardwright.errors import SpecError
from shardwright.recovery.transfer import CLOUD
from shardwright.runtime.recovery.state import cloud as cloud_module
from shardwright.runtime.recovery.state.cloud import Cloud, checksum, in_blocks, part_name
from shardwright.runtime.recovery.state.inventory import HeldPiece
from shardwright.runtime.recovery.state.snapshots import INDEX, DiskTier, Snapshot, Snapshots, hashed, laid_out
from shardwright.runtime.recovery.state.transfers import PieceSource, Wanted, fetch
from shardwright.runtime.state.pieces import CutShape, StatePiece, StoredPiece
from shardwright.runtime.storage.manifest import Manifest

FOREVER = 100_000
NAME = part_name(5, 1, "m0", whole=False)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def not_numbers(path: Path) -> None:
    path.write_bytes(np.full(path.stat().st_size // 4, np.nan, np.float32).tobytes())


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "corrupt": flipped,
    "truncated": cut_off,
    "missing": Path.unlink,
    "not a number": not_numbers,
}


def test_damaged_snapshots_are_named_and_had_from_another_machine_or_the_run_stops(tmp_path: Path) -> None:
    """No worker has its state any more, so all of it comes from memory: one machine's is damaged in every way, one way
    after the other, then everybody's."""
    with Fleet(tmp_path, copies(2), FOREVER, every=FOREVER) as fleet:
        fleet.until(lambda: fleet.step() >= 5, "steps")
        generation = fleet.generation()
        os.kill(fleet.workers(0)[0], signal.SIGKILL)  # the others hand their state over
        fleet.until(lambda: fleet.generation() > generation, "snapshots everywhere")
        step = fleet.recoveries()[-1]["step"]
        for name, damage in DAMAGES.items():
            fleet.until(lambda: fleet.step(1) > step, f"steps before {name}")
            for path in (fleet.place(1) / "memory").glob("*.bin"):
                damage(path)
            struck(fleet, name)
            assert fleet.recoveries()[-1]["step"] == step, name
            assert (
                "pieces, among them the " in fleet.logs()
                and "from machine-1 to machine-1: it is damaged" in fleet.logs()
            )
        fleet.until(lambda: fleet.step(1) > step + 20, "steps before the end")
        for index in range(fleet.count):
            for path in (*fleet.place(index).glob("memory/*.bin"), *fleet.place(index).glob("out/state/*/*.state")):
                not_numbers(path)
        fleet.kill_workers()
        assert [process.wait(PATIENCE_SECONDS) for process in fleet.running.values()] == [1, 1]
        assert "error: no step survives whole: " in fleet.logs() and "begin from a checkpoint" in fleet.logs()


def struck(fleet: Fleet, what: str) -> None:
    """Kill every worker at once, and wait until all train again."""
    generation = fleet.generation()
    fleet.kill_workers()
    fleet.until(lambda: fleet.generation() > generation, f"a recovery from {what}")


def test_of_two_machines_the_second_goes_on_where_nobody_listens_at_the_first(tmp_path: Path) -> None:
    with Fleet(tmp_path, copies(2), FOREVER, every=5) as fleet:
        fleet.until(lambda: fleet.step(1) >= 10, "steps")
        before, generation = fleet.step(1), fleet.generation()
        fleet.lose(0)
        fleet.until(lambda: fleet.generation() > generation, "the second machine")
        assert fleet.recoveries()[-1]["machines"] == ["machine-1"] and fleet.recoveries()[-1]["step"] >= before


@pytest.mark.nightly
def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    state = tmp_path / "machine-0" / "out" / "state"
    state.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state)], capture_output=True).returncode:
        pytest.skip("no rights to mount a small disk")
    try:
        with Fleet(tmp_path, copies(1), 20, every=5) as fleet:
            fleet.finish()
            assert fleet.step() == 20
            assert "of machine-0 is not on disk: [Errno 28] No space left on device" in fleet.logs()
    finally:
        subprocess.run(["umount", str(state)], check=True)


def snapshot_in(folder: Path) -> Snapshot:
    piece = StatePiece(kind="weight", parameter="a", start=0, stop=64, low=0, high=64)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
    whole = Snapshot(file="a.bin", step=5, generation=1, origin="", pieces=laid_out([piece], "a.bin"))
    return hashed(folder, whole)


def test_what_another_run_or_a_torn_index_left_is_not_adopted(tmp_path: Path) -> None:
    """Stale and wrong-model shards: the index says of which run they are."""
    snapshot = snapshot_in(tmp_path)
    Snapshots(tmp_path, "m0", "this run").done(snapshot)
    snapshot_in(tmp_path)
    mine = Snapshots(tmp_path, "m0", "this run")
    mine.done(snapshot)
    assert len(list(Snapshots(tmp_path, "m0", "this run").holdings())) == 1
    assert not list(Snapshots(tmp_path, "m0", "another model").holdings()) and not (tmp_path / "a.bin").exists()
    snapshot = snapshot_in(tmp_path)
    mine.done(snapshot)
    (tmp_path / INDEX).write_text("{")
    assert not list(Snapshots(tmp_path, "m0", "this run").holdings())
    disk = DiskTier(tmp_path / "disk", "m0", "this run")
    held = HeldPiece(machine="m0", tier=0, step=5, generation=1, stored=snapshot_in(tmp_path).pieces[0])
    disk.write(5, tmp_path, [held])
    assert len(list(DiskTier(tmp_path / "disk", "m0", "this run").holdings())) == 1
    assert not list(DiskTier(tmp_path / "disk", "m0", "another model").holdings())


@pytest.mark.parametrize("fault", ["", "503", "reset", "truncated", "wrong bytes"])
def test_what_an_object_store_gives_is_verified(tmp_path: Path, fault: str) -> None:
    """A piece that does not come, or is not what was written, is named with its source; a sound store gives it."""
    snapshot = snapshot_in(tmp_path)
    held = HeldPiece(machine="m0", tier=0, step=5, generation=1, stored=snapshot.pieces[0])
    with store() as (server, url):
        cloud = Cloud(url)
        (there,) = cloud.put_part(NAME, tmp_path, [held])
        server.fault = fault
        source = PieceSource(
            machine="", address=None, tier=CLOUD, file=f"step-00000005/{there.file}", offset=there.offset,
            start=0, stop=there.bytes,
        )  # fmt: skip

        async def read(source: PieceSource) -> bytes:
            return await asyncio.to_thread(cloud.read, source.file, source.offset, source.offset + source.stop)

        wanted = Wanted(stored=replace(there, file="back.bin", offset=0), sources=(source,))
        found = asyncio.run(fetch([wanted], tmp_path, "back.bin", {CLOUD: read}))
    if fault:
        ((stored, _, reason),) = found.failed
        assert stored.piece == held.stored.piece and reason and not found.pieces
    else:
        assert (tmp_path / "back.bin").read_bytes() == (tmp_path / "a.bin").read_bytes() and not found.failed


@pytest.mark.parametrize("fault", ["503", "reset"])
def test_a_store_that_takes_nothing_raises_and_one_claim_alone_is_first(tmp_path: Path, fault: str) -> None:
    snapshot = snapshot_in(tmp_path)
    held = HeldPiece(machine="m0", tier=0, step=5, generation=1, stored=snapshot.pieces[0])
    with store() as (server, url):
        cloud = Cloud(url)
        assert cloud.claim("run", 1, "m0") == "m0"
        assert cloud.claim("run", 1, "m1") == "m0"
        assert cloud.claims("run") == [1] and not cloud.claims("another")
        server.fault = fault
        with pytest.raises(OSError, match=r"127\.0\.0\.1"):
            cloud.put_part(NAME, tmp_path, [held])


@pytest.mark.parametrize("says_md5", [True, False])
@pytest.mark.parametrize("fault", ["keeps half", "keeps other bytes"])
def test_an_upload_that_a_store_did_not_keep_as_it_was_counts_for_nothing(
    tmp_path: Path, fault: str, *, says_md5: bool
) -> None:
    """Neither a part of a step nor a manifest; the step before is what the store holds."""
    held = HeldPiece(machine="m0", tier=0, step=5, generation=1, stored=snapshot_in(tmp_path).pieces[0])
    with store() as (server, url):
        cloud, server.says_md5 = Cloud(url), says_md5
        pieces = cloud.put_part(NAME, tmp_path, [held])
        first = manifest_of(5, pieces)
        cloud.commit(first)
        assert bool(server.reads) != says_md5
        server.fault = fault
        with pytest.raises(OSError, match=r"step-00000010/000001-m0\.state does not read back as it was written"):
            cloud.put_part(part_name(10, 1, "m0", whole=False), tmp_path, [held])
        with pytest.raises(OSError, match=r"step-00000010/manifest\.json does not read back as it was written"):
            cloud.commit(manifest_of(10, pieces))
        server.fault = ""
        assert {item.step for item in cloud.held(lambda _manifest: None)} == {5}


def test_what_was_sent_in_parts_has_the_checksum_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """As S3 documents it: the MD5 of the parts' MD5s one after another, and how many."""
    monkeypatch.setattr(cloud_module, "BLOCK_BYTES", 4)
    parts = b"".join(hashlib.md5(part).digest() for part in (b"abcd", b"efgh", b"i"))
    assert checksum(in_blocks([b"abc", b"", b"defghi"]), "0123-3") == f"{hashlib.md5(parts).hexdigest()}-3"
    assert checksum(in_blocks([b"abc", b"defghi"])) == hashlib.md5(b"abcdefghi").hexdigest()


def test_a_store_that_does_not_answer_is_waited_for_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.runtime.recovery.state.transfers.RANGE_SECONDS", 0.05)
    stored = snapshot_in(tmp_path).pieces[0]
    source = PieceSource(machine="", address=None, tier=CLOUD, file="f", offset=0, start=0, stop=stored.bytes)

    async def silent(_: PieceSource) -> bytes:
        await asyncio.sleep(60.0)
        return b""

    wanted = Wanted(stored=replace(stored, file="back.bin", offset=0), sources=(source,))
    ((_, _, reason),) = asyncio.run(fetch([wanted], tmp_path, "back.bin", {CLOUD: silent})).failed
    assert reason == "it did not come within 0.05 s"


def test_a_snapshot_that_was_written_over_is_not_protected(tmp_path: Path) -> None:
    """A tier that is so slow that the ranks have come round to the file again has no right to what it reads there."""
    held = HeldPiece(machine="m0", tier=0, step=5, generation=1, stored=snapshot_in(tmp_path).pieces[0])
    (tmp_path / "a.bin").write_bytes(np.arange(1, 65, dtype=np.float32).tobytes())
    with pytest.raises(OSError, match="has changed"):
        DiskTier(tmp_path / "disk", "m0", "this run").write(5, tmp_path, [held])
    with store() as (server, url), pytest.raises(SpecError, match="has changed"):
        Cloud(url).put_part(NAME, tmp_path, [held])
    assert not server.objects and not list(DiskTier(tmp_path / "disk", "m0", "this run").holdings())


def manifest_of(step: int, pieces: Sequence[StoredPiece]) -> Manifest:
    parameters = {"a": CutShape(shape=(64,), dim=0)}
    return Manifest(
        step=step,
        model="a",
        settings={},
        data={"samples": 0},
        random={"seed": 0},
        loss_scale=None,
        parameters=parameters,
        pieces=tuple(pieces),
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("503", "of machine-0 is not in the object store: "),
        ("reset", "of machine-0 is not in the object store: "),
        ("keeps half", "of machine-0 is not in the object store: step-000000"),
        ("slow", "is still on its way"),
    ],
)
def test_training_goes_on_whatever_its_object_store_does(tmp_path: Path, fault: str, words: str) -> None:
    with store() as (server, url):
        with Fleet(tmp_path, copies(1), 60, every=2, extra=["--upload", url]) as fleet:
            fleet.until(lambda: fleet.step() > 0, "a step")
            server.fault = fault
            fleet.finish()
            assert fleet.step() == 60 and words in fleet.logs()
        assert any("step-00000060/manifest" in name for name in server.objects) == (fault == "slow")
