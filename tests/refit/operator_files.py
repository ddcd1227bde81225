"""Small operator files of GPUs whose speed is known, in the format of docs/calibration.md."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

from shardwright.cost.learned.links import HOST_GPUS, HOST_RATES
from shardwright.spec.catalog.gpus import gpus

COMPUTE_COLUMNS = [
    "source",
    "gpu",
    "dtype",
    "op",
    "subop",
    "pass",
    "layout",
    "b",
    "m",
    "n",
    "k",
    "seq_q",
    "seq_kv",
    "heads",
    "kv_heads",
    "head_dim",
    "causal",
    "window",
    "rows",
    "cols",
    "flops",
    "bytes",
    "time_us",
    "time_us_min",
    "n_obs",
    "quality",
    "note",
]
COMM_COLUMNS = [
    "source",
    "gpu",
    "interconnect",
    "collective",
    "n_ranks",
    "ranks_per_node",
    "n_nodes",
    "bytes",
    "dtype",
    "time_us",
    "time_us_min",
    "algbw",
    "busbw",
    "n_obs",
    "quality",
    "note",
]
SHARES = {"A100-SXM-80": 0.8, "H100-SXM": 0.7, "L40S": 0.5}  # of the peak, at any shape
LINK_SHARE, CALL_SECONDS = 0.6, 2e-5


def write(path: Path, columns: list[str], rows: list[dict[str, object]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def write_operator_files(folder: Path, *, source: str = "aiconfigurator") -> None:
    """Write products, attention, elementwise operators and collectives of three GPUs."""
    random, compute, comm = np.random.default_rng(0), [], []
    for name, share in SHARES.items():
        gpu = gpus()[name]
        peak = gpu.peak("bf16") or 0.0
        common = {"source": source, "gpu": name, "dtype": "bf16", "pass": "fwd", "n_obs": 1, "quality": 1}
        for _ in range(150):
            m, n, k = (256 * int(size) for size in random.integers(4, 33, 3))
            took = 2.0 * m * n * k / (share * peak) + 2e-6
            compute.append(common | {"op": "gemm", "b": 1, "m": m, "n": n, "k": k, "time_us": took * 1e6})
        for _ in range(60):
            batch, length, heads = (int(random.choice(sizes)) for sizes in ((1, 2, 4), (1024, 2048, 8192), (8, 16, 32)))
            flops = 2.0 * batch * length * (length + 1) * heads * 128
            compute.append(
                common | {
                    "op": "attention_fwd", "b": batch, "seq_q": length, "seq_kv": length, "heads": heads, "head_dim": 128,
                    "flops": flops, "bytes": 8 * batch * length * heads * 128,
                    "time_us": 1e6 * (flops / (0.6 * share * peak) + 4e-6),
                }
            )  # fmt: skip
        for size in 10.0 ** random.uniform(6.5, 9.5, 40):
            took = size / (0.8 * gpu.memory_bytes_per_second) + 3e-6
            compute.append(common | {"op": "elementwise", "subop": "add", "bytes": size, "time_us": took * 1e6})
        for ranks in (2, 4, 8):
            for size in 2.0 ** np.arange(20, 31):
                moved = size * (ranks - 1) / ranks
                host = dict(HOST_RATES)[ranks] if name in HOST_GPUS else np.inf
                took = moved / min(LINK_SHARE * gpu.link_bytes_per_second, host) + CALL_SECONDS
                comm.append(
                    {
                        "source": "aiconfigurator", "gpu": name, "interconnect": "", "collective": "all_gather",
                        "n_ranks": ranks, "ranks_per_node": ranks, "n_nodes": 1, "bytes": int(size), "dtype": "half",
                        "time_us": took * 1e6, "quality": 1,
                    }
                )  # fmt: skip
    write(folder / "compute.csv.gz", COMPUTE_COLUMNS, compute)
    write(folder / "comm.csv.gz", COMM_COLUMNS, comm)
