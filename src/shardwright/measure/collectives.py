"""Times of collectives between the devices of this machine, measured by processes of its own under torchrun.

`measured` starts them and yields their rows as they come. The module run by each process is this one: it reads the rows
to measure from a file, and rank 0 writes each result as a line of JSON to standard output.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from shardwright.errors import bad
from shardwright.measure.device import BATCH_SECONDS, FEWEST_BATCHES, MeasuredDevice, Timing, synchronize, timing
from shardwright.spec.read.machine_profile import CollectiveTime

MARK = "shardwright-row "
WARM_UPS = 2
ELEMENT_BYTES = 4
LAST_LINES = 5


def measured(rows: Sequence[CollectiveTime], device: MeasuredDevice, row_seconds: float) -> Iterator[CollectiveTime]:
    """Yield `rows` with their times, one by one. Raises SpecError where the processes fail."""
    if not rows:
        return
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        task, errors = Path(folder) / "task.json", Path(folder) / "errors.txt"
        task.write_text(
            json.dumps({"backend": device.backend, "seconds": row_seconds, "rows": [asdict(row) for row in rows]})
        )
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={device.count}"]
        with errors.open("w") as sink, _started([*command, "-m", __name__, str(task)], sink, device) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith(MARK):
                        times = json.loads(line.removeprefix(MARK))
                        yield replace(rows[times["row"]], seconds=times["seconds"], spread=times["spread"])
                code = process.wait()
            finally:
                _stop(process)
        if code:
            words = " | ".join(errors.read_text(errors="replace").split("\n")[-LAST_LINES:]).strip()
            raise bad(
                "profile", f"measuring collectives failed: {words}", "repeat it, or leave them out: `links=False`"
            )


def _started(command: Sequence[str], errors: IO[str], device: MeasuredDevice) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": str(device.threads or 1), "TORCHELASTIC_ERROR_FILE": os.devnull}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
    )


def _stop(process: subprocess.Popen[str]) -> None:
    """End torchrun and its workers, which are a process group of their own, and wait for them."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(task: Path) -> None:
    """Measure the rows of a task as one of its ranks."""
    import torch
    import torch.distributed as dist

    job = json.loads(task.read_text())
    backend, rank = str(job["backend"]), int(os.environ["LOCAL_RANK"])
    where = torch.device("cpu")
    if backend == "cuda":
        torch.cuda.set_device(rank)
        where = torch.device("cuda", rank)
    dist.init_process_group("nccl" if backend == "cuda" else "gloo")
    rows = [CollectiveTime(**row) for row in job["rows"]]
    groups = {ranks: dist.new_group(list(range(ranks))) for ranks in dict.fromkeys(row.ranks for row in rows)}
    for index, row in enumerate(rows):
        dist.barrier()
        if rank < row.ranks:
            result = _time(_call(row, where, groups[row.ranks]), groups[row.ranks], backend, job["seconds"])
            if rank == 0:
                line = {"row": index, "seconds": result.seconds, "spread": result.spread}
                print(MARK + json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _call(row: CollectiveTime, where: Any, group: Any) -> Callable[[], object]:
    """Return the call of one collective. Buffers are fp32 and hold a whole number of elements for each rank."""
    import torch
    import torch.distributed as dist

    from shardwright.runtime.model.parallel import gather_into, reduce_scatter_into

    share = math.ceil(row.bytes / (ELEMENT_BYTES * row.ranks))
    whole = torch.ones(share * row.ranks, device=where)
    other = torch.empty_like(whole)
    part = torch.ones(share, device=where)
    rank = dist.get_rank()

    def send() -> object:
        return dist.send(whole, 1, group=group) if rank == 0 else dist.recv(whole, 0, group=group)

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: gather_into(whole, part, group=group),
        "reduce_scatter": lambda: reduce_scatter_into(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send": send,
    }
    return calls[row.collective]


def _time(call: Callable[[], object], group: Any, backend: str, seconds: float) -> Timing:
    """Return the time of a collective, repeated in batches without a pause as in training: of each batch the slowest
    rank's, of these the median."""
    import torch
    import torch.distributed as dist

    def batch(repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        synchronize(backend)
        return (time.perf_counter() - begin) / repeats

    once = min(batch(1) for _ in range(1 + WARM_UPS))
    where = "cuda" if backend == "cuda" else "cpu"
    agreed = torch.tensor([once], device=where)
    dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=group)
    repeats = max(round(min(BATCH_SECONDS, seconds / FEWEST_BATCHES) / float(agreed)), 1)
    batches = max(round(seconds / (repeats * float(agreed))), FEWEST_BATCHES)
    samples = torch.tensor([batch(repeats) for _ in range(batches)], device=where)
    dist.all_reduce(samples, op=dist.ReduceOp.MAX, group=group)
    return timing(samples.tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
