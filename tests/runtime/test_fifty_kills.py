"""Fifty kills of launcher, ranks and store: nothing is left running, and nothing that was saved is lost."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.runtime.commands import children, command, gone, make_folder, rank_process, run, waited

from shardwright.runtime.storage.manifest import newest_checkpoint, read_manifest, read_piece

VICTIMS = ("launcher", "rank 0", "rank 1", "store")
KILLS = int(os.environ.get("SHARDWRIGHT_KILLS", "50"))
STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("localhost", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.mark.nightly
def test_fifty_kills(tmp_path: Path) -> None:
    folder, out, generator = make_folder(tmp_path), tmp_path / "out", random.Random(0)
    step = 0
    for number in range(KILLS):
        victim = VICTIMS[number % len(VICTIMS)]
        started = under_a_store(folder, out) if victim == "store" else [begun(folder, out, {})]
        before = count(out)
        wanted = before + generator.randrange(1, 12)
        assert waited(partial(came_so_far, started[-1], out, wanted), 120), victim
        assert started[-1].poll() is None, started[-1].communicate()[1]
        ranks = [item.pid for item in started[1:]] or [rank_process(children(started[0]), rank) for rank in (0, 1)]
        target = {"rank 0": ranks[0], "rank 1": ranks[1]}.get(victim, started[0].pid)  # else the launcher, or the store
        os.kill(target, signal.SIGKILL)
        assert waited(partial(all_gone, ranks), 10), f"kill {number}, of the {victim}: ranks live on"
        for item in started:
            item.communicate(timeout=60)
        step = verified_step(out, step)
        assert len(list(out.glob("step-*"))) <= 3, "nothing half removed stays"
    assert step > 0
    again = run(folder / "pair.json", *told(folder, out, step + 2), "--resume", out)
    whole = run(folder / "pair.json", *told(folder, tmp_path / "whole", step + 2))
    assert again.returncode == whole.returncode == 0
    found, expected = (read_manifest(newest_checkpoint(path)) for path in (out, tmp_path / "whole"))
    assert [item.hash for item in found.pieces] == [item.hash for item in expected.pieces], "bit for bit"


def told(folder: Path, out: Path, steps: int) -> list[object]:
    return ["--data", folder / "c.bin", "--out", out, "--steps", steps, "--checkpoint-every", 1]


def begun(folder: Path, out: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a run, or a rank of one, that goes on from what there is."""
    resume = ["--resume", out] if list(out.glob("step-*")) else []
    words = command(folder / "pair.json", *told(folder, out, 100_000), *resume, "--patience", 20)
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )


def under_a_store(folder: Path, out: Path) -> list[subprocess.Popen[str]]:
    """Start a process with a store alone, and two ranks that meet there."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    store = subprocess.Popen([sys.executable, "-c", STORE, port], stdout=subprocess.PIPE, text=True)
    assert store.stdout is not None and store.stdout.readline() == "ready\n"
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    ranks = [begun(folder, out, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    return [store, *ranks]


def came_so_far(process: subprocess.Popen[str], out: Path, wanted: int) -> bool:
    return process.poll() is not None or count(out) >= wanted


def all_gone(processes: list[int]) -> bool:
    return all(map(gone, processes))


def count(out: Path) -> int:
    """Return the rows of the metrics, of which the last may be half written."""
    with suppress(OSError):
        return (out / "metrics.csv").read_text().count("\n") - 1
    return 0


def verified_step(out: Path, before: int) -> int:
    """Return the newest step, all of whose pieces are as they were written; none is lost that was there before."""
    if not list(out.glob("step-*")):
        return before
    folder = newest_checkpoint(out)
    manifest = read_manifest(folder)
    for stored in manifest.pieces:
        read_piece(folder, stored)
    assert manifest.step >= before
    return manifest.step
