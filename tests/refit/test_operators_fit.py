"""Fits of operators and collectives, end to end on small files whose speeds are known."""

from __future__ import annotations

import csv
import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tools.refit.collective_rows import measured_pool, read_collectives
from tools.refit.collectives import fit_collectives, left_out_collectives, random_collectives
from tools.refit.fitting import fitted_files, tables
from tools.refit.holdout import left_out, random_error
from tools.refit.operators_command import operators
from tools.refit.rows import read_operators

from shardwright.cost.learned.fitted import expected_offset, log_efficiency, unpack
from shardwright.cost.learned.links import HOST_RATES
from shardwright.cost.learned.machine import facts
from shardwright.errors import SpecError
from shardwright.spec.catalog.gpus import gpus, gpus_with

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
                host = dict(HOST_RATES)[ranks] if name in gpus_with("through_host") else np.inf
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


pytest.importorskip("xgboost", reason="needs the extra `calibrate`")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("operators")
    write_operator_files(made)
    return made


def test_rows_are_read_by_family(folder):
    rows = read_operators(folder)
    assert {family: len(found) for family, found in rows.items()} == {"gemm": 450, "attention": 180, "memory": 120}
    assert rows["gemm"].training.all()
    np.testing.assert_array_equal(rows["gemm"].flops, 2.0 * rows["gemm"].m * rows["gemm"].n * rows["gemm"].k)


def test_random_rows_are_predicted(folder):
    found = tables(folder)
    for family, limit in (("gemm", 0.06), ("attention", 0.06), ("memory", 0.06)):
        everything, training = random_error(family, found[family])
        assert everything < limit and training < limit


def test_a_gpu_that_was_left_out_is_off_by_a_factor_that_a_few_shapes_mend(folder):
    scores = {one.gpu: one for one in left_out("gemm", tables(folder)["gemm"])}
    assert scores.keys() == {"A100-SXM-80", "H100-SXM", "L40S"}
    slow = scores["L40S"]
    assert slow.bias < -0.15 and slow.error > 2.0 * slow.calibrated_error


def test_the_same_files_give_the_same_bytes_and_a_model_that_reads_back(folder):
    found, series = tables(folder), read_collectives(folder)
    files = dict(fitted_files(found, series))
    assert files == dict(fitted_files(tables(folder), read_collectives(folder)))
    assert files.keys() == {"gemm.npz", "attention.npz", "memory.npz", "links.csv", "network.csv"}
    model, rows = unpack(files["gemm.npz"]), found["gemm"]
    machine = facts(gpus()["H100-SXM"], "bf16")
    mine = np.flatnonzero(rows.cells.names[rows.cell, 0] == "H100-SXM")
    better = log_efficiency(model, expected_offset(model, machine, machine.arithmetic), rows.columns[mine])
    assert np.median(np.abs(better - rows.target[mine])) < 0.06


def test_fp8_products_are_freed_of_quantising_their_input(tmp_path):
    write_operator_files(tmp_path)
    plain = read_operators(tmp_path)["gemm"]
    import gzip

    path = tmp_path / "compute.csv.gz"
    text = gzip.decompress(path.read_bytes()).decode().replace("H100-SXM,bf16,gemm", "H100-SXM,fp8,gemm")
    path.write_bytes(gzip.compress(text.encode()))
    freed = read_operators(tmp_path)["gemm"]
    mine = plain.gpu == "H100-SXM"
    np.testing.assert_array_equal(freed.seconds[~mine], plain.seconds[~mine])
    assert (freed.seconds[mine] < plain.seconds[mine]).all()
    assert (freed.seconds[mine] >= 0.6 * plain.seconds[mine] * (1 - 1e-12)).all()


def test_links_are_found_again(folder):
    series = read_collectives(folder)
    fits = fit_collectives(series)
    for one in series:
        ratio = fits.predicted(one) / one.seconds
        assert np.median(np.abs(ratio - 1.0)) < 0.25
    assert fits.links["switch", "Hopper"].efficiency == pytest.approx(LINK_SHARE, rel=0.25)
    rows, error = random_collectives(series, share=0.3, seed=0)
    assert rows > 10 and error < 0.15
    assert left_out_collectives(series)["H100-SXM"][1] < 0.3


def test_descriptions_of_networks_are_understood():
    rented = measured_pool("B200", "EFAv4 8x400Gbps", 8, 4)
    assert rented.inter_bytes_per_second == pytest.approx(400e9)
    assert measured_pool("A100-SXM-40", "RoCE 8x2x100Gbps", 8, 2).inter_bytes_per_second == pytest.approx(200e9)
    assert measured_pool("GB200", "NVL72 multi-rack IB", 4, 36).domain_gpus == 72


def test_a_missing_column_is_named(tmp_path):
    (tmp_path / "compute.csv.gz").write_bytes(b"")
    with pytest.raises(SpecError, match=r"compute\.csv\.gz"):
        read_operators(tmp_path)
    (tmp_path / "comm.csv.gz").write_bytes(b"")
    with pytest.raises(SpecError, match=r"comm\.csv\.gz"):
        read_collectives(tmp_path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gpu": "MyGPU"}, "line 2: the catalogue has no GPU 'MyGPU'"),
        ({"time_us": "fast"}, "line 2: could not convert"),
        ({"op": "dropout"}, "has no row to fit to"),
    ],
)
def test_what_cannot_be_fitted_to_is_named(tmp_path, changed, words):
    row = {"source": "mine", "gpu": "L40S", "dtype": "bf16", "op": "gemm", "pass": "fwd", "time_us": 9.0}
    write(tmp_path / "compute.csv.gz", COMPUTE_COLUMNS, [row | dict.fromkeys("mnk", 512) | changed])
    write(tmp_path / "comm.csv.gz", COMM_COLUMNS, [])
    with pytest.raises(SpecError, match=words):
        operators(tmp_path, out=tmp_path / "fits")
    assert not (tmp_path / "fits").exists()


@pytest.mark.nightly
def test_the_command_writes_what_it_fitted_and_refuses_a_folder_without_files(folder, tmp_path):
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tools.refit", "operators", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run(folder, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 5 and (tmp_path / "out" / "gemm.npz").stat().st_size > 1000
    missing = run(tmp_path / "nowhere")
    assert missing.returncode == 2 and "compute.csv.gz" in missing.stderr and "Traceback" not in missing.stderr
    page = tmp_path / "page.md"
    assert run(folder, "--evaluate", "--page", page).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert "Matrix products" in text and "| L40S | 150 |" in text and "Collectives" in text
