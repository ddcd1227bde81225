"""Records `ddp0.json.gz` and `ddp1.json.gz`: PyTorch's profiler over two steps of two ranks on gloo, whose loader takes
5 ms a sample.

    python -m tests.traces.record_ddp
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile, schedule

SAMPLE_SECONDS, BATCH = 0.005, 8


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that take a while."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, place: int) -> torch.Tensor:
        time.sleep(SAMPLE_SECONDS)
        return torch.randn(256)


def rank(number: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29771", "RANK": str(number), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
    model: Any = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    samples = iter(torch.utils.data.DataLoader(Slow(), batch_size=BATCH))

    def step() -> None:
        optimizer.zero_grad()
        model(next(samples)).pow(2).mean().backward()
        optimizer.step()

    for _ in range(2):
        step()
    file = f"{folder}/{number}.json"
    plan = schedule(wait=0, warmup=1, active=2)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda made: made.export_chrome_trace(file)
    ) as profiler:
        for _ in range(3):
            step()
            profiler.step()
    dist.barrier()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank, (folder,), nprocs=2)
        for number in range(2):
            document = json.loads(Path(folder, f"{number}.json").read_text())
            document |= {"host_name": "", "traceName": "trace.json"}
            target = Path(__file__).with_name(f"ddp{number}.json.gz")
            target.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


if __name__ == "__main__":
    main()
