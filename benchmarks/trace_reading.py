"""How long a large trace takes to read, and how much memory: a trace of Kineto's form of so many MB is written first.

python -m benchmarks.trace_reading [MB]
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwright.traces.read import read_records

KERNELS, MICROSECONDS = 2_000, 10.0  # of a step, and between launches
EVERY = 20  # kernels, of which one is a collective
HEAD = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}


def step(number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a step: an operator, its launch and its kernel each time."""
    begin = number * KERNELS * MICROSECONDS
    for place in range(KERNELS):
        at, correlation = begin + place * MICROSECONDS, number * KERNELS + place
        shapes = {
            "External id": correlation,
            "Input Dims": [[4096, 4096], [4096, 4096]],
            "Input type": ["c10::BFloat16"] * 2,
        }
        host = {"ph": "X", "pid": 1, "tid": 1, "ts": at, "dur": 3}
        yield host | {"cat": "cpu_op", "name": "aten::mm", "args": shapes}
        yield host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": correlation}}
        name, args = (
            "nvjet_tst_128x256_64x4",
            {"device": 0, "stream": 7, "correlation": correlation, "grid": [32, 1, 2]},
        )
        if place % EVERY == 0:
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            args |= {"Collective name": "allreduce", "Group size": 8, "Process Group Description": "mesh_tp"}
        yield {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at + 5, "dur": 9, "args": args}
    annotation = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1}
    yield annotation | {"ts": begin, "dur": KERNELS * MICROSECONDS}


def write(path: Path, megabytes: float) -> None:
    """Write a trace of so many MB."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(HEAD)[:-1] + ', "traceEvents": [\n')
        number = 0
        while number == 0 or file.tell() < megabytes * 1e6:
            file.write((",\n" if number else "") + ",\n".join(map(json.dumps, step(number))))
            number += 1
        file.write('\n], "displayTimeUnit": "ms"}\n')


def main(megabytes: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(path, megabytes)
        size = path.stat().st_size
        begin = time.process_time()
        (rank,) = read_records([path]).ranks
        seconds = time.process_time() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{size / 1e6:.0f} MB, {rank.steps} steps: {seconds:.1f} s of a processor, {memory / 1e9:.2f} GB of memory")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 500.0)
