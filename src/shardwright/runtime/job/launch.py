"""Starting the processes of a run on this machine, as torchrun does, and saying which of them failed."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from shardwright.errors import bad
from shardwright.runtime.job.ending import BAD_INPUT, TOLD, how_ended, leave, stop_signals, terminals
from shardwright.runtime.job.settings import Device
from shardwright.runtime.layout.groups import Place

LAUNCHED = "SHARDWRIGHT_LAUNCHED"  # the process id of `launch` in the environment of those that it started


def inside_torchrun() -> bool:
    """Return whether this process is one of a run already."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def speaks_for_all() -> bool:
    """Return whether this process of a run has to tell how it ended, as rank 0 does unless `launch` waits for it."""
    return os.environ.get("RANK") == "0" and LAUNCHED not in os.environ


def launcher() -> int | None:
    """Return the process id of the `launch` that started this process, None where it was not one."""
    return int(os.environ[LAUNCHED]) if LAUNCHED in os.environ else None


def choose_device(name: str | None) -> Device:
    """Return the device of a name, or the GPU if there is one. Raises SpecError where PyTorch is missing."""
    try:
        import torch
    except ImportError:
        raise bad("train", "training needs PyTorch", "pip install 'shardwright[runtime]'") from None
    if name == "cpu" or (name is None and not torch.cuda.is_available()):
        return "cpu"
    if name not in (None, "cuda"):
        raise bad(f"`device={name}`", "is not known", "cuda (also for AMD's ROCm) or cpu")
    return "cuda"


def require_devices(device: str, count: int) -> None:
    """Raise SpecError where this machine has fewer GPUs than the run has processes."""
    import torch

    if device != "cuda":
        return
    if not torch.cuda.is_available():
        raise bad("`device=cuda`", "PyTorch finds no GPU on this machine", "take `device=cpu`, or see `nvidia-smi`")
    if torch.cuda.device_count() < count:
        message = f"the plan needs {count} GPUs, this machine has {torch.cuda.device_count()}"
        hint = f"start it on all machines with torchrun (`-m shardwright train …`), {count} processes in all"
        raise bad("train", message, hint)


def launch(arguments: Sequence[str], places: Sequence[Place], stop_file: Path, logs: Path | None = None) -> int:
    """Run `python -m shardwright` with `arguments` as every rank, and return the exit status: 0, 2 where the ranks
    found bad input, else 1 after the failed rank was named on standard error.

    SIGINT, SIGTERM and SIGHUP leave `stop_file`, on which the run stops after its step with a checkpoint; a second
    SIGINT or SIGTERM ends it at once. What ranks print also goes into files in `logs`, with the rank before each line
    here, as torchrun does.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[LAUNCHED] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // len(places), 1)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # failures are told below
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(places),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.5,
        signals_to_handle="SIGQUIT",  # the others are ours
        role="rank",
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL, tee=Std.ALL) if logs else None,
    )
    stop_file.unlink(missing_ok=True)
    try:
        with _stopping(stop_file):
            elastic_launch(config, sys.executable)("-m", "shardwright", *arguments)
    except ChildFailedError as error:
        return _failed(error, places)
    finally:
        stop_file.unlink(missing_ok=True)
    return 0


def _failed(error: object, places: Sequence[Place]) -> int:
    failures = sorted(getattr(error, "failures", {}).items(), key=lambda item: item[1].timestamp)
    if any(failure.exitcode == BAD_INPUT for _, failure in failures):
        return BAD_INPUT
    rank, failure = failures[0]
    if failure.exitcode not in TOLD:
        print(f"error: {places[rank].name} {how_ended(failure.exitcode)}", file=sys.stderr)
    return 1


@contextmanager
def _stopping(stop_file: Path) -> Iterator[None]:
    shown = terminals()

    def take(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave(shown)
        elif stop_file.exists():
            raise KeyboardInterrupt
        stop_file.touch()
        print("\nstopping after this step, with a checkpoint (again: at once)", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, take) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
