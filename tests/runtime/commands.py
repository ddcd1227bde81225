"""`shardwright train` as a process of its own, its ranks, and what it leaves."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests import forked, warm
from tests.runtime.samples import plan_of, replica, stage, tiny_model
from tests.signals import interruptible

from shardwright.cli.app import main
from shardwright.plans.document import save
from shardwright.runtime.storage.data import write_tokens

MODEL = tiny_model(4, vocab=257)
PAIR = plan_of(MODEL, replica(stage((0, 1)), stage((1, 4)), micro_batches=4), sharding="zero1")
TENSOR = plan_of(MODEL, replica(stage((0, 4), tp=2), micro_batches=2))
SINGLE = plan_of(MODEL, replica(stage((0, 4)), micro_batches=4))


def command(*arguments: object, under: Sequence[str] = ()) -> list[str]:
    return [sys.executable, *under, "-m", "shardwright", "train", *map(str, arguments), "--device", "cpu"]


def run(*arguments: object, under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    words = command(*arguments, under=under)
    return subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)


def run_alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a plan of one rank as torchrun would, in a process that has PyTorch already: it starts at once."""
    return run_ranks(1, 1, *arguments)


def run_ranks(machines: int, gpus: int, *arguments: object, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a plan on machines of so many GPUs each, all of them here, in processes that have PyTorch already. Raises
    TimeoutExpired where one has not ended after so many seconds."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        words, world = command(*arguments)[3:], machines * gpus
        places = [
            {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % gpus, "LOCAL_WORLD_SIZE": gpus}
            | {"GROUP_RANK": rank // gpus, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            for rank in range(world)
        ]
        ranks = [forked.context().Process(target=_rank, args=(words, folder, place)) for place in places]
        end = time.monotonic() + seconds
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(max(end - time.monotonic(), 0.0))
        if any(process.exitcode is None for process in ranks):
            for process in ranks:
                process.kill()
            raise subprocess.TimeoutExpired(words, seconds)
        texts = [(Path(folder) / name).read_text() for name in ("out", "err")]
        return subprocess.CompletedProcess(words, max(process.exitcode or 0 for process in ranks), *texts)


def _rank(words: list[str], folder: str, place: dict[str, Any]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.environ.update({name: str(value) for name, value in place.items()})
    sys.argv = ["shardwright", *words]
    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def make_folder(path: Path) -> Path:
    """Put data and plans there: c.bin, pair.json and tensor.json of two ranks, single.json of one."""
    (path / "a.txt").write_text("It is a truth universally acknowledged, that a single man. " * 50, encoding="utf-8")
    write_tokens(path / "c.bin", [path / "a.txt"])
    for name, plan in {"pair": PAIR, "tensor": TENSOR, "single": SINGLE}.items():
        save(plan, path / f"{name}.json")
    return path


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def children(process: subprocess.Popen[str]) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not listed.exists():
        process.kill()
        pytest.skip("this kernel does not list the children of a process")
    return [int(child) for child in listed.read_text().split()]


def rank_process(processes: list[int], rank: int) -> int:
    """Return the process of a rank: its environment says which it is, or its name, where it began warm."""
    wanted = f"RANK={rank}".encode()
    said = {p: (Path(f"/proc/{p}/environ").read_bytes(), Path(f"/proc/{p}/comm").read_bytes()) for p in processes}
    return next(p for p, (environ, name) in said.items() if wanted in (*environ.split(b"\0"), name.strip()))


def started(
    folder: Path, out: Path, *arguments: object, plan: str = "pair", patience: float = 10, under: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Return a run that has done its first steps."""
    told = [folder / f"{plan}.json", "--data", folder / "c.bin", "--steps", 100_000, "--out", out, *arguments]
    told += ["--patience", patience]
    with interruptible(), nullcontext() if under else warm.programs():
        process = subprocess.Popen(
            command(*told, under=under), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    waited(lambda: process.poll() is not None or ((out / "metrics.csv").exists() and len(rows(out)) > 2), 60)
    if process.poll() is None and len(rows(out)) > 2:
        return process
    process.kill()
    raise AssertionError(process.communicate()[1])


def waited(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether a condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def gone(process: int) -> bool:
    """Return whether a process has ended, if nobody has asked for its exit status too."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")
