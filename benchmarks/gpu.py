"""Everything that needs a GPU, in at most ten minutes: `make gpu`.

    python benchmarks/gpu.py                            # all of it; without a GPU on the CPU, with small sizes
    python benchmarks/gpu.py --minutes 3 --only steps

In this order: the machine's profile; the CUDA tests, on one GPU and, if there are more, on several; the bandwidth of
NCCL's all-reduce; steps of a 1B model and of layers as wide as an 8B model's at several micro-batches and with
recomputation, run by `shardwright train`'s runtime, by plain PyTorch, and by plain PyTorch compiled, with the predicted
times (without the profile and with it) and bytes beside the measured ones; and ranks of plans of many GPUs, rehearsed
and run. Predictions are made before anything is trained. Figures are appended to benchmarks/history/gpu.csv, where the
project keeps its own measurements. Without a GPU the same code runs on the CPU and under fake tensors, and says so: its
figures are not kept. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from gpu_rehearsals import text as rehearsals_text
from gpu_steps import WAYS, WAYS_IN_FP8, Row, configurations, kept_bytes, measured, own_step, plain_step, planned

from shardwright import Cluster, SpecError, profiled
from shardwright.cost.compute.efficiency import computes
from shardwright.cost.learned import default_efficiency
from shardwright.measure.device import MeasuredDevice, cluster_fragment, find_device
from shardwright.measure.run import measure
from shardwright.reports.text.layout import table
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.machine_profile import MachineProfile

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "benchmarks" / "history" / "gpu.csv"
CUDA_TESTS = ROOT / "tests" / "runtime" / "test_cuda.py"
PARTS = ("tests", "links", "steps", "rehearsals")
PROFILE_SHARE = 0.15
NO_GPU = """There is no GPU here. The same code runs on the CPU with a tiny model, in some minutes, which shows that it
runs. Its figures say nothing of GPUs and are not kept. Left out are the CUDA tests, NCCL, fp8 and real sizes.
"""
COLUMNS = """Milliseconds of a step of `train` as predicted by default, as predicted with this machine's profile, and as
measured; the error is that of the second. Gigabytes as predicted, and as PyTorch allocated them (on GPUs alone).
"""
FAKE = """
4. Bytes that a micro-batch keeps for its backward pass, counted under fake tensors
What is priced has a GPU's fused RMSNorm, which keeps less than that of a CPU, and one layer's work space, which is not
kept. Layers alone, as a GPU would run them, are held within 2 % by tests."""
HEADER = ("model", "precision", "micro-batch", "recompute", "way", "default ms", "profiled ms", "measured ms", "error",
          "predicted GB", "allocated GB", "error of it")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where and when figures were measured."""

    date: str
    commit: str
    gpu: str
    torch: str


def main() -> int:
    """Run the parts, print their tables, and return 1 where tests or links failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="what has not begun by then is left out, and named")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--gpu", help="what the GPU is in the catalogue")
    parser.add_argument("--out", type=Path, default=HISTORY, help="append figures of GPUs to this CSV")
    options = parser.parse_args()
    end = time.monotonic() + 60.0 * options.minutes
    parts = PARTS if options.only is None else (options.only,)
    try:
        device = find_device(options.device, options.gpu)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2
    if device.backend != "cuda":
        print(NO_GPU)
    failed = run_tests(device) if "tests" in parts else 0
    if "links" in parts:
        failed |= print_links(device)
    if "steps" in parts:
        rows = steps(device, options.gpu, options.minutes, end)
        if device.backend == "cuda":
            append(options.out, rows, device)
    if "rehearsals" in parts:
        print(rehearsals_text(device.backend == "cuda"))
    return failed


def run_tests(device: MeasuredDevice) -> int:
    """Run the tests that need GPUs; without one they are skipped, which is what is shown."""
    there = device.backend == "cuda"
    words = [sys.executable, "-m", "pytest", "-q", "-rs" if there else "-rN", str(CUDA_TESTS)]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    told = done.stdout.strip() if there else f"{done.stdout.strip().splitlines()[-1]}: they need a GPU"
    print(f"1. Tests of CUDA and NCCL ({CUDA_TESTS.relative_to(ROOT)})\n{told}\n", flush=True)
    return int(done.returncode not in (0, 5))


def print_links(device: MeasuredDevice) -> int:
    """Print the bandwidth of an all-reduce over the GPUs of this machine (over two processes, without one)."""
    script = ROOT / "benchmarks" / "gpu_links.py"
    done = subprocess.run([sys.executable, str(script), device.backend], check=False, capture_output=True, text=True)
    title = "over NCCL" if device.backend == "cuda" else "over gloo, two processes in place of GPUs"
    print(f"2. All-reduce {title}\n{done.stdout.strip() or done.stderr.strip()}\n", flush=True)
    return int(done.returncode != 0)


def steps(device: MeasuredDevice, name: str | None, minutes: float, end: float) -> list[Row]:
    """Profile, predict and print everything, then train it, and print the table."""
    found = profile(device, name, PROFILE_SHARE * minutes)
    cluster = build_cluster(cluster_fragment(replace(found, count=1)), "this machine")
    efficiencies = (default_efficiency(), profiled(default_efficiency(), [found], cluster))
    made = [(size, *_named(model, planned(size, cluster, efficiencies, precision, micro_batch, how)))
            for model, size, precision, micro_batch, how in configurations(device.backend)
            if computes(cluster.pools[0].gpu, precision)]  # fmt: skip
    print(f"3. Steps of one {device.name}\n{COLUMNS}", flush=True)
    print(f"predicted, before anything is trained:\n{text([row for _, _, row in made])}\n", flush=True)
    rows: list[Row] = []
    left_out = []
    for size, plan, row in made:
        for way in WAYS_IN_FP8 if row.precision == "fp8" else WAYS:
            each = replace(row, way=way) if way == "train" else _of(row, way)
            if time.monotonic() > end or plan is None:
                left_out.append(f"{each.model} {each.precision} {each.micro_batch} {each.recompute} {way}")
                continue
            make = (lambda plan=plan, each=each: own_step(plan, each.precision, device)) if way == "train" else (
                lambda each=each, size=size: plain_step(each, size, device))  # fmt: skip
            rows.append(measured(each, make, device))
    print(f"trained:\n{text(rows)}\n{summary(rows)}")
    if left_out:
        print(f"left out, for want of time or memory: {'; '.join(left_out)}")
    if device.backend != "cuda":
        print(fake_text(made, cluster))
    return rows


def profile(device: MeasuredDevice, name: str | None, minutes: float) -> MachineProfile:
    """Return a profile of the device without its links."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(device, Path(folder) / "profile.json", name=name, minutes=minutes, links=False)


def fake_text(made: Sequence[tuple], cluster: Cluster) -> str:  # type: ignore[type-arg]
    """Return what a micro-batch keeps under fake tensors beside what is priced, for every configuration."""
    lines = [FAKE]
    for _, plan, row in made:
        if plan is not None and plan.prediction is not None:
            counted = kept_bytes(plan, row.precision) / 1e6
            priced = plan.prediction.memory[0][0].activations_bytes / 1e6
            lines.append(f"  {row.model} {row.precision} {row.micro_batch} {row.recompute}: "
                         f"{counted:.1f} MB counted, {priced:.1f} MB priced")  # fmt: skip
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Return how `train` compares with plain PyTorch, and how far predictions are off, in the median."""
    by = {(row.model, row.precision, row.micro_batch, row.recompute, row.way): row for row in rows}
    lines = []
    for way in ("eager", "compiled"):
        ratios = [
            other.seconds / row.seconds
            for key, row in by.items()
            if key[-1] == "train" and row.seconds and (other := by.get((*key[:-1], way))) and other.seconds
        ]
        if ratios:
            lines.append(f"speed of train over plain {way} PyTorch: median {statistics.median(ratios):.3f}, "
                         f"{min(ratios):.3f} to {max(ratios):.3f}")  # fmt: skip
    for words, name in (("without the profile", "default_seconds"), ("with it", "profiled_seconds")):
        pairs = [(getattr(row, name), row.seconds) for row in rows]
        errors = [abs(predicted / found - 1.0) for predicted, found in pairs if predicted and found]
        if errors:
            middle = statistics.median(errors)
            lines.append(f"predicted time {words}: median error {middle:.1%}, most {max(errors):.1%}")
    return "\n".join(lines)


def text(rows: Sequence[Row]) -> str:
    """Return a table of predicted and measured steps."""
    return table(HEADER, [list(_cells(row)) for row in rows], words=("model", "precision", "recompute", "way"))


def append(path: Path, rows: Sequence[Row], device: MeasuredDevice) -> None:
    """Add rows to the figures that the project keeps."""
    import torch

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True
    ).stdout.strip()
    run = Run(date=datetime.date.today().isoformat(), commit=commit, gpu=device.name, torch=torch.__version__)
    names = [field.name for kind in (Run, Row) for field in fields(kind)]
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator=os.linesep)
        if new:
            writer.writeheader()
        writer.writerows({**asdict(run), **asdict(row)} for row in rows)


def _named(model: str, found: tuple) -> tuple:  # type: ignore[type-arg]
    plan, row = found
    return plan, replace(row, model=model)


def _of(row: Row, way: str) -> Row:
    return Row(model=row.model, precision=row.precision, micro_batch=row.micro_batch, recompute=row.recompute, way=way)


def _cells(row: Row) -> Iterator[str]:
    yield from (row.model, row.precision, str(row.micro_batch), row.recompute, row.way)
    for seconds in (row.default_seconds, row.profiled_seconds, row.seconds):
        yield "–" if seconds is None else f"{seconds * 1e3:.1f}"
    yield _error(row.profiled_seconds, row.seconds)
    for size in (row.predicted_bytes, row.allocated_bytes):
        yield "–" if size is None else f"{size / 1e9:.2f}"
    yield _error(row.predicted_bytes, row.allocated_bytes)


def _error(predicted: float | None, found: float | None) -> str:
    return f"{predicted / found - 1:+.1%}" if predicted and found else "–"


if __name__ == "__main__":
    sys.exit(main())
