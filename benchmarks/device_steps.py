"""Predicted against measured training steps on one device: measures it, predicts, then trains a small Llama for real.

    python benchmarks/device_steps.py                     # the GPU if there is one, else a tiny model on the CPU
    python benchmarks/device_steps.py --profile profile.json --out steps.json

The predictions are written before the first step is trained. On a GPU a Llama of 1.1 billion parameters (hidden 2048,
22 layers) trains in bf16 with fp32 gradients, master weights and Adam, as mixed precision usually is; on a CPU a tiny
one in fp32, or in bf16 with --precision. Each configuration is a micro-batch size with or without full recomputation.
Needs PyTorch.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from shardwright import Cluster, Model, Plan, SpecError, make_job, profiled
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned import default_efficiency
from shardwright.files import write_atomically
from shardwright.measure.device import (
    MeasuredDevice,
    cluster_fragment,
    find_device,
    require_torch,
    synchronize,
    torch_device,
)
from shardwright.measure.run import measure
from shardwright.reports.text.layout import table
from shardwright.search.planner import plan
from shardwright.search.space.axes import parse_pins
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.machine_profile import MachineProfile, load_profile
from shardwright.spec.read.model_yaml import model_of_dimensions

ACCUMULATED = 2  # micro-batches of a step
WARM_UP_STEPS, TIMED_STEPS = 2, 5
HEADER = (
    "micro-batch", "recompute", "default ms", "profiled ms", "measured ms", "error", "predicted GB", "allocated",
    "reserved",
)  # fmt: skip
PINS = ("sharding=none", "flash=on", "offload=0", "tp=1", "vpp=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Dimensions of a Llama, and the micro-batch sizes to train it with."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    micro_batches: tuple[int, ...]


LLAMA_1B = Size(
    hidden=2048, layers=22, heads=32, kv_heads=4, ffn=5632, vocab=32000, seq_len=2048, micro_batches=(1, 2, 4, 8)
)
TINY = Size(hidden=256, layers=4, heads=4, kv_heads=2, ffn=768, vocab=2048, seq_len=256, micro_batches=(1, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One configuration: what was predicted without the profile and with it, and what was measured.
    Bytes are peaks without what the driver holds. None stands for what does not fit, or was not measured."""

    micro_batch: int
    recompute: str
    default_seconds: float | None
    profiled_seconds: float | None
    predicted_bytes: float | None
    seconds: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None


def main() -> None:
    """Profile, predict, train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--gpu", help="what the GPU is in the catalogue")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to profile")
    parser.add_argument("--profile", type=Path, help="a profile of this machine, instead of measuring one")
    parser.add_argument("--framework", default="eager", help="whose overheads to predict with")
    parser.add_argument("--precision", choices=("bf16", "fp32"), help="bf16 on a GPU, fp32 on a CPU, if not given")
    parser.add_argument("--out", type=Path, help="write predictions, then results as well, to this JSON file")
    options = parser.parse_args()
    try:
        device = find_device(options.device, options.gpu)
        found = load_profile(options.profile) if options.profile else measured(device, options.gpu, options.minutes)
    except SpecError as error:
        print(error)
        return
    size = LLAMA_1B if device.backend == "cuda" else TINY
    precision = options.precision or ("bf16" if device.backend == "cuda" else "fp32")
    steps = predictions(found, size, options.framework, precision)
    print(f"predicted:\n{text(steps)}\n", flush=True)
    for index in range(len(steps) + 1):
        if options.out is not None:
            write_atomically(options.out, json.dumps([asdict(step) for step in steps], indent=1) + "\n")
        if index < len(steps):
            steps[index] = trained(steps[index], device, size, precision)
    print(f"trained:\n{text(steps)}")


def measured(device: MeasuredDevice, name: str | None, minutes: float) -> MachineProfile:
    """Return a profile of the device without its links."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(device, Path(folder) / "profile.json", name=name, minutes=minutes, links=False)


def predictions(found: MachineProfile, size: Size, framework: str, precision: str) -> list[Step]:
    """Return the configurations with their predictions."""
    cluster = build_cluster(cluster_fragment(replace(found, count=1)), "this machine")
    models: tuple[Efficiency, ...] = (default_efficiency(), profiled(default_efficiency(), [found], cluster))
    steps = []
    for micro_batch in size.micro_batches:
        for recompute in ("none", "full"):
            plans = [
                best(model_of(size), cluster, efficiency, micro_batch, size.seq_len, recompute, precision, framework)
                for efficiency in models
            ]
            default, corrected = (item and item.prediction for item in plans)
            stage = corrected.memory[0][0] if corrected else None
            steps.append(
                Step(
                    micro_batch=micro_batch,
                    recompute=recompute,
                    default_seconds=default.iteration_seconds if default else None,
                    profiled_seconds=corrected.iteration_seconds if corrected else None,
                    predicted_bytes=stage.total_bytes - stage.context_bytes if stage else None,
                )
            )
    return steps


def best(
    model: Model,
    cluster: Cluster,
    efficiency: Efficiency,
    micro_batch: int,
    seq_len: int,
    recompute: str,
    precision: str,
    framework: str,
) -> Plan | None:
    """Return the plan of one configuration on one device, None where it does not fit."""
    job = make_job(global_batch=micro_batch * ACCUMULATED, seq_len=seq_len, precision=precision, framework=framework)
    words = "none" if recompute == "none" else "uniform"
    layers = () if recompute == "none" else ("recompute_layers=1",)
    space = parse_pins([*PINS, f"micro_batch={micro_batch}", f"recompute={words}", *layers])
    plans = plan(model, cluster, job, space=space, top=1, fit=0.01, efficiency=efficiency).plans
    return plans[0] if plans else None


def model_of(size: Size) -> Model:
    """Return the Llama as the planner describes it."""
    names = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab")
    return model_of_dimensions({name: getattr(size, name) for name in names}, "small llama")


def trained(step: Step, device: MeasuredDevice, size: Size, precision: str) -> Step:
    """Return the configuration with what training it took."""
    torch = require_torch()
    if device.threads is not None:
        torch.set_num_threads(device.threads)
    torch.manual_seed(0)
    gc.collect()
    if device.backend == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds = step_seconds(trainer(step, device, size, precision), device)
    except torch.OutOfMemoryError:
        return step
    if device.backend != "cuda":
        return replace(step, seconds=seconds)
    return replace(
        step,
        seconds=seconds,
        allocated_bytes=float(torch.cuda.max_memory_allocated()),
        reserved_bytes=float(torch.cuda.max_memory_reserved()),
    )


def step_seconds(train: Callable[[], None], device: MeasuredDevice) -> float:
    """Return the median time of a training step after a few to warm up."""
    samples = []
    for _ in range(WARM_UP_STEPS + TIMED_STEPS):
        begin = time.perf_counter()
        train()
        synchronize(device.backend)
        samples.append(time.perf_counter() - begin)
    return statistics.median(samples[WARM_UP_STEPS:])


def trainer(
    step: Step, device: MeasuredDevice, size: Size, precision: str, *, compiled: bool = False
) -> Callable[[], None]:
    """Return the function that trains one step: `ACCUMULATED` micro-batches, gradients summed and clipped in fp32, Adam
    on fp32 weights. In bf16 the model itself holds copies of them, and the gradients of each micro-batch are added to
    the fp32 sums as they come. `compiled`: the layers are, each as a region."""
    import torch
    from small_llama import Llama

    low = precision == "bf16"
    model = Llama(size, recompute=step.recompute == "full").to(torch_device(device), torch.bfloat16 if low else None)
    weights = [*model.parameters()]
    if compiled:
        for layer in model.layers:
            layer.compile(dynamic=False)
    masters = [weight.detach().float().clone() if low else weight for weight in weights]
    for master in masters:
        master.grad = torch.zeros_like(master)

    def add_to_sum(weight: Any, master: Any) -> None:
        master.grad.add_(weight.grad)
        weight.grad = None

    if low:
        for weight, master in zip(weights, masters, strict=True):
            weight.register_post_accumulate_grad_hook(lambda own, master=master: add_to_sum(own, master))
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    shape = (step.micro_batch, size.seq_len)
    batches = [torch.randint(size.vocab, shape, device=torch_device(device)) for _ in range(ACCUMULATED)]

    def train() -> None:
        for batch in batches:
            (model.loss(batch) / ACCUMULATED).backward()
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if low:
            with torch.no_grad():
                torch._foreach_copy_(weights, masters)

    return train


def text(steps: list[Step]) -> str:
    """Return a table of predicted and measured steps."""
    rows = []
    for step in steps:
        known = step.seconds and step.profiled_seconds
        error = f"{step.profiled_seconds / step.seconds - 1:+.1%}" if known else "–"  # type: ignore[operator]
        times = (step.default_seconds, step.profiled_seconds, step.seconds)
        sizes = (step.predicted_bytes, step.allocated_bytes, step.reserved_bytes)
        cells = ["–" if value is None else f"{value * 1e3:.1f}" for value in times]
        memory = ["–" if value is None else f"{value / 1e9:.2f}" for value in sizes]
        rows.append([str(step.micro_batch), step.recompute, *cells, error, *memory])
    return table(HEADER, rows, words=("recompute",))


if __name__ == "__main__":
    main()
