"""`shardwright train` as a process of its own, its ranks, and what it leaves."""

from __future__ import annotations

import csv
import multiprocessing as mp
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.cli.app import main
from shardwright.plans.document import save
from shardwright.runtime.storage.data import write_tokens

MODEL = tiny_model(4, vocab=257)
PAIR = plan_of(MODEL, replica(stage((0, 1)), stage((1, 4)), micro_batches=4), sharding="zero1")
TENSOR = plan_of(MODEL, replica(stage((0, 4), tp=2), micro_batches=2))
SINGLE = plan_of(MODEL, replica(stage((0, 4)), micro_batches=4))


def command(*arguments: object, under: Sequence[str] = ()) -> list[str]:
    return [sys.executable, *under, "-m", "shardwright", "train", *map(str, arguments), "--device", "cpu"]


def run(
    *arguments: object, under: Sequence[str] = (), environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, under=under),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=os.environ | (environment or {}),
    )


def run_alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a plan of one rank as torchrun would, in a process that has PyTorch already: it starts at once."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.runtime.preload"])
    with tempfile.TemporaryDirectory() as folder:
        words = command(*arguments)[3:]
        process = context.Process(target=_rank_alone, args=(words, folder))
        process.start()
        process.join(120)
        texts = [(Path(folder) / name).read_text() for name in ("out", "err")]
        return subprocess.CompletedProcess(words, process.exitcode or 0, *texts)


def _rank_alone(words: list[str], folder: str) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    where = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ.update(where)
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
    wanted = f"RANK={rank}".encode()
    return next(p for p in processes if wanted in Path(f"/proc/{p}/environ").read_bytes().split(b"\0"))


def started(
    folder: Path, out: Path, *arguments: object, plan: str = "pair", patience: float = 10, under: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Return a run that has done its first steps."""
    told = [folder / f"{plan}.json", "--data", folder / "c.bin", "--steps", 100_000, "--out", out, *arguments]
    told += ["--patience", patience]
    process = subprocess.Popen(command(*told, under=under), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
