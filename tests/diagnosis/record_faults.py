"""Records the runs with injected faults that the tests of `diagnose` read.

    python -m tests.diagnosis.record_faults [NAME…]

The project's own runtime trains on gloo, four processes at most, on a machine that may do other things beside. Devices
and links are emulated: a pass lasts until the time of its device is over, a message or a sum arrives no sooner than its
link lets it, both by the clock. So the healthy machine is known without the cost model (`LAYER`, `RATE`, `LATENCY`),
and a fault is what is done to it. The saving of a fault is measured: the mean step of the run less that of its
reference, a run of the same plan without the fault or, where the plan is the fault, of the plan that mends it.

Files of a run: its plan, `status.json`, `metrics.csv`, and for some the trace; `faults/facts.csv` has what was injected
and what it cost.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.plans.document import save
from shardwright.plans.plan import Overlap, Plan, Replica, Sharding, Stage
from shardwright.spec.cluster import Cluster, Gpu, NodePool
from tests import forked
from tests.runtime.samples import NONE, SEQ_LEN, plan_of, tiny_model

FOLDER = Path(__file__).parent / "faults"
GPU = "emulated"
LAYER, ENDS = 0.012, 0.004  # seconds of a forward pass of a layer, and of embedding or head; twice as long backward
RATE, LATENCY = 10e6, 1e-3  # bytes a second of a link, and seconds of a message
LAYERS, STEPS, MICRO_BATCHES = 8, 16, 4
MODEL = tiny_model(LAYERS, vocab=257, hidden=64)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to a run. `slow_rank` multiplies the passes of a rank, `swapping` those of a rank at some times,
    `link` divides the rate of all links; the rest are seconds: `host` between passes, `data` of reading the samples of
    a step, `save` of a checkpoint every fourth step. `padded` is the share of tokens that are padding."""

    slow_rank: tuple[int, float] | None = None
    swapping: tuple[int, float] | None = None
    link: float = 1.0
    host: float = 0.0
    data: float = 0.0
    save: float = 0.0
    padded: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run to record: its plan, what is done to it, the causes that must be named, and the name of its reference."""

    plan: Plan
    fault: Fault = Fault()
    causes: tuple[str, ...] = ()
    reference: str = ""
    trace: bool = False


def emulated_cluster(machines: int, rate: float = RATE) -> Cluster:
    """Machines of one emulated device each, whose links carry `rate` bytes a second."""
    gpu = Gpu(
        name=GPU, vendor="", architecture="", compute_capability="", multiprocessors=1, clock_hertz=1e9,
        peak_flops=(("fp32", 1e12),), memory_bytes=16e9, memory_bytes_per_second=100e9, l2_bytes=1e6, link="PCIe3",
        link_bytes_per_second=16e9, link_domain=1, pcie_bytes_per_second=16e9, tdp_watts=100.0, source="emulated",
        date="2026",
    )  # fmt: skip
    pool = NodePool(
        gpu=gpu, nodes=machines, gpus_per_node=1, memory_bytes=16e9, domain_gpus=1, intra_bytes_per_second=16e9,
        intra_latency_seconds=1e-6, inter_bytes_per_second=rate, inter_latency_seconds=LATENCY,
        host_memory_bytes=16e9, host_memory_bytes_per_second=50e9,
    )  # fmt: skip
    return Cluster(pools=(pool,), name="emulated")


def profile_document() -> dict[str, Any]:
    """The layer profile of the healthy device, from its own constants."""
    forward = [ENDS, *[LAYER] * LAYERS, ENDS]
    entries = [
        {
            "gpu": GPU, "tensor_parallel": 1, "micro_batch": size,
            "forward_seconds": [size * value for value in forward],
            "backward_seconds": [2 * size * value for value in forward],
        }
        for size in (1, 2)
    ]  # fmt: skip
    return {
        "version": 1, "model": MODEL.name, "seq_len": SEQ_LEN, "precision": "fp32", "entries": entries,
    }  # fmt: skip


def pipeline(
    *layers: int, copies: int = 1, sharding: Sharding = "none", overlap: bool = True, rate: float = RATE
) -> Plan:
    """A plan of equal pipelines with so many layers in each stage."""
    ends = np.cumsum([0, *layers]).tolist()
    stages = tuple(
        Stage(
            gpu=GPU, tensor_parallel=1, context_parallel=1, expert_parallel=1, expert_tensor_parallel=1,
            layers=((begin, end),), recompute=NONE,
        )
        for begin, end in pairwise(ends)
    )  # fmt: skip
    copy = Replica(count=copies, micro_batches=MICRO_BATCHES * len(layers), stages=stages)
    plan = plan_of(MODEL, copy, sharding=sharding, cluster=emulated_cluster(copies * len(layers), rate))
    return replace(
        plan,
        overlap=Overlap(grad_reduce=overlap and copies > 1),
        job=replace(plan.job, framework="train", precision="fp32"),
    )


PAIR, FOUR = pipeline(8, copies=2), pipeline(8, copies=4, sharding="zero1")
LINE, SQUARE = pipeline(4, 4), pipeline(4, 4, copies=2)
RUNS: dict[str, Recorded] = {
    "pair": Recorded(plan=PAIR),
    "four": Recorded(plan=FOUR),
    "line": Recorded(plan=LINE),
    "square": Recorded(plan=SQUARE, trace=True),
    "line-4": Recorded(plan=pipeline(2, 2, 2, 2)),
    "pair-again": Recorded(plan=PAIR, trace=True),
    "four-again": Recorded(plan=FOUR),
    "line-again": Recorded(plan=LINE, trace=True),
    "square-again": Recorded(plan=SQUARE),
    "line-4-again": Recorded(plan=pipeline(2, 2, 2, 2)),
    "slow-rank-of-four": Recorded(
        plan=FOUR, fault=Fault(slow_rank=(2, 1.4)), causes=("slow-rank",), reference="four", trace=True
    ),
    "slow-rank-of-square": Recorded(
        plan=SQUARE, fault=Fault(slow_rank=(3, 1.5)), causes=("slow-rank",), reference="square"
    ),
    "slow-link-sums": Recorded(plan=PAIR, fault=Fault(link=12.0), causes=("slow-network",), reference="pair"),
    "slow-link-messages": Recorded(
        plan=LINE, fault=Fault(link=120.0), causes=("slow-network",), reference="line", trace=True
    ),
    "host-of-pair": Recorded(plan=PAIR, fault=Fault(host=0.06), causes=("host-bound",), reference="pair", trace=True),
    "host-of-line": Recorded(plan=LINE, fault=Fault(host=0.03), causes=("host-bound",), reference="line"),
    "data-of-pair": Recorded(plan=PAIR, fault=Fault(data=0.35), causes=("data-loading",), reference="pair", trace=True),
    "data-of-line": Recorded(plan=LINE, fault=Fault(data=0.4), causes=("data-loading",), reference="line"),
    "no-overlap-of-pair": Recorded(
        plan=pipeline(8, copies=2, overlap=False, rate=RATE / 3), causes=("exposed-gradients",),
        reference="pair-slow-overlapped",
    ),
    "no-overlap-of-four": Recorded(
        plan=pipeline(8, copies=4, overlap=False, rate=RATE / 3), causes=("exposed-gradients",),
        reference="four-slow-overlapped",
    ),
    "pair-slow-overlapped": Recorded(plan=pipeline(8, copies=2, rate=RATE / 3)),
    "four-slow-overlapped": Recorded(plan=pipeline(8, copies=4, rate=RATE / 3)),
    "unequal-line": Recorded(plan=pipeline(6, 2), causes=("unequal-stages",), reference="line", trace=True),
    "unequal-line-4": Recorded(plan=pipeline(4, 2, 1, 1), causes=("unequal-stages",), reference="line-4"),
    "checkpoints": Recorded(plan=PAIR, fault=Fault(save=1.6), causes=("stalls",), reference="pair"),
    "padded": Recorded(plan=PAIR, fault=Fault(padded=0.45), causes=("padding",), reference="pair"),
    "swapping-of-pair": Recorded(plan=PAIR, fault=Fault(swapping=(1, 2.6)), causes=("slow-rank",), reference="pair"),
    "swapping-of-line": Recorded(plan=LINE, fault=Fault(swapping=(0, 2.2)), causes=("slow-rank",), reference="line"),
    "slow-rank-and-data": Recorded(
        plan=FOUR, fault=Fault(slow_rank=(1, 1.3), data=0.9), causes=("slow-rank", "data-loading"), reference="four"
    ),
    "link-and-checkpoints": Recorded(
        plan=PAIR, fault=Fault(link=12.0, save=1.6), causes=("slow-network", "stalls"), reference="pair"
    ),
    "host-and-unequal": Recorded(
        plan=pipeline(6, 2), fault=Fault(host=0.04), causes=("host-bound", "unequal-stages"), reference="line"
    ),
    "data-and-checkpoints": Recorded(
        plan=LINE, fault=Fault(data=0.4, save=1.6), causes=("data-loading", "stalls"), reference="line"
    ),
    "swapping-and-host": Recorded(
        plan=FOUR, fault=Fault(swapping=(3, 2.6), host=0.06), causes=("slow-rank", "host-bound"), reference="four"
    ),
    "padded-and-slow-rank": Recorded(
        plan=PAIR, fault=Fault(padded=0.45, slow_rank=(0, 1.4)), causes=("padding", "slow-rank"), reference="pair"
    ),
}  # fmt: skip


def emulate(fault: Fault, rank: int, rate: float) -> None:
    """Give this process a device and links of known speed, and the fault."""
    from shardwright.runtime.job import train as job
    from shardwright.runtime.job.feed import Feed
    from shardwright.runtime.state import buckets
    from shardwright.runtime.step import pipeline as step
    from shardwright.runtime.step.sync import GradientSync

    chance = random.Random(rank)

    def slower() -> float:
        factor = 1.0
        if fault.slow_rank is not None and fault.slow_rank[0] == rank:
            factor = fault.slow_rank[1]
        if fault.swapping is not None and fault.swapping[0] == rank and chance.random() < 0.4:
            factor *= fault.swapping[1]
        return factor

    def lasting(run: Callable[..., Any], times: float, at: Any, index: int, *rest: Any) -> Any:
        units = at.chunks[index].units
        layers = sum(0 < unit <= LAYERS for unit in units)
        end = time.perf_counter() + slower() * times * (layers * LAYER + (len(units) - layers) * ENDS)
        result = run(at, index, *rest)
        time.sleep(max(end - time.perf_counter(), 0.0))
        return result

    vars(buckets)["LARGEST_MERGED_ELEMENTS"] = 20_000  # so that a small model has several, as large ones do
    pipeline_module: Any = step
    pipeline_module._forward = partial(lasting, step._forward, 1.0)
    pipeline_module._backward = partial(lasting, step._backward, 2.0)
    _emulate_links(rate / fault.link, pipeline_module, GradientSync)
    if fault.host:
        event = step.Event

        def after(**given: Any) -> Any:
            made = event(**given)
            time.sleep(fault.host)
            return made

        pipeline_module.Event = after
    if fault.data:
        rows: Any = Feed._rows

        def late(self: Any, number: int) -> Any:
            time.sleep(fault.data + _step_seconds(self._engine.layout.plan))
            return rows(self, number)

        vars_of_feed: Any = Feed
        vars_of_feed._rows = late
    if fault.save:
        saved: Any = vars(job)["save_checkpoint"]

        def slow(*given: Any, **more: Any) -> Any:
            result = saved(*given, **more)
            time.sleep(fault.save)
            return result

        vars(job)["save_checkpoint"] = slow


def _step_seconds(plan: Plan) -> float:
    """What a step takes on the healthy machine, about: samples that take `data` longer to read hold the next one up."""
    (copy,) = plan.replicas
    longest = max(stage.layer_count for stage in copy.stages) * LAYER + ENDS * (2 if len(copy.stages) == 1 else 1)
    return 3.0 * longest * (copy.micro_batches + len(copy.stages) - 1)


def _emulate_links(rate: float, step: Any, sums: Any) -> None:
    import torch.distributed as dist

    from shardwright.runtime.step import sync

    class Late:
        """A message or sum that is there no sooner than its link lets it."""

        def __init__(self, work: Any, at: float) -> None:
            self.work, self.at = work, at

        def wait(self) -> None:
            self.work.wait()
            time.sleep(max(self.at - time.perf_counter(), 0.0))

        def is_completed(self) -> bool:
            return time.perf_counter() >= self.at and bool(self.work.is_completed())

    send = step.send
    busy = [0.0]

    def turn(passes: float, ranks: int, size: float) -> float:
        """Return when a ring is through with so many bytes: each takes its turn on the link."""
        begin = max(time.perf_counter(), busy[0])
        busy[0] = begin + passes * (LATENCY * (ranks - 1) + (ranks - 1) / ranks * size / rate)
        return busy[0]

    def later(channels: Any, operation: Any, message: Any, leaving: list[Any]) -> None:
        takes = LATENCY + message.numel() * message.element_size() / rate
        kept: list[Any] = []
        timer = threading.Timer(takes, lambda: send(channels, operation, message, kept))
        timer.start()

        class Sent:
            def wait(self) -> None:
                timer.join()
                for work, _ in kept:
                    work.wait()

            def is_completed(self) -> bool:
                return not timer.is_alive() and all(work.is_completed() for work, _ in kept)

        leaving[:] = [pair for pair in leaving if not pair[0].is_completed()]
        leaving.append((Sent(), message))

    step.send = later
    start = sums._start

    def started(self: Any, buffer: Any) -> None:
        before = len(self._work)
        start(self, buffer)
        for place in range(before, len(self._work)):
            ranks = dist.get_world_size(self._groups[buffer])
            size = buffer.gradients.whole.numel() * buffer.gradients.whole.element_size()
            passes = 1.0 if self._sharded else 2.0
            self._work[place] = Late(self._work[place], turn(passes, ranks, size))

    sums._start = started
    gather = vars(sync)["gather_into"]

    def gathered(whole: Any, part: Any, *, group: Any, async_op: bool) -> Any:
        work = gather(whole, part, group=group, async_op=async_op)
        return Late(work, turn(1.0, dist.get_world_size(group), whole.numel() * whole.element_size()))

    vars(sync)["gather_into"] = gathered  # weights, where ranks share the optimizer's state


def write_data(path: Path, padded: float) -> None:
    """Write samples of random tokens, of which the last part of each is one token where they are padded."""
    tokens = np.random.default_rng(0).integers(0, 256, size=(2_000, SEQ_LEN))
    if padded:
        lengths = np.random.default_rng(1).binomial(SEQ_LEN, 1.0 - padded, size=len(tokens))
        tokens[np.arange(SEQ_LEN)[None] >= lengths[:, None]] = 256
    path.write_bytes(tokens.astype("<u2").tobytes())
    document = {"version": 1, "dtype": "uint16", "tokens": tokens.size, "vocab": 257, "tokenizer": "bytes", "end": 256}
    path.with_suffix(".json").write_text(json.dumps(document))


def rank_process(words: list[str], place: dict[str, str], fault: Fault, rate: float, log: str) -> None:
    """Be a rank of a run."""
    from shardwright.cli.app import main

    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(place)
    sys.argv = ["shardwright", *words]
    emulate(fault, int(place["RANK"]), rate)
    main()


def record(name: str) -> float:
    """Record a run, keep its files, and return the mean seconds of a step, checkpoints counted."""
    run = RUNS[name]
    world = run.plan.gpus
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        at = Path(folder)
        save(run.plan, at / "plan.json")
        write_data(at / "data.bin", run.fault.padded)
        words = ["train", at / "plan.json", "--data", at / "data.bin", "--steps", STEPS, "--out", at / "run"]
        words += ["--device", "cpu", *(["--checkpoint-every", 4] if run.fault.save else [])]
        words += ["--trace", at / "trace.json"] if run.trace else []
        places = [
            {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
            | {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            for rank in range(world)
        ]
        log = str(at / "log.txt")
        arguments, rate = [str(word) for word in words], run.plan.cluster.pools[0].inter_bytes_per_second
        ranks = [
            forked.context().Process(target=rank_process, args=(arguments, place, run.fault, rate, log))
            for place in places
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(300.0)
        if any(process.exitcode for process in ranks) or not (at / "run" / "status.json").exists():
            for process in ranks:
                process.kill()
            raise RuntimeError(f"{name}: {Path(log).read_text()}")
        return _kept(name, at)


def _kept(name: str, at: Path) -> float:
    target = FOLDER / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    status = json.loads((at / "run" / "status.json").read_text())
    status["checkpoint"] = None
    (target / "status.json").write_text(json.dumps(status, indent=1) + "\n")
    save(RUNS[name].plan, target / "plan.json")
    shutil.copy(at / "run" / "metrics.csv", target)
    if RUNS[name].fault.padded:
        (target / "data.bin").write_bytes((at / "data.bin").read_bytes()[: 2 * SEQ_LEN * 500])
        document = json.loads((at / "data.json").read_text()) | {"tokens": SEQ_LEN * 500}
        (target / "data.json").write_text(json.dumps(document))
    if (at / "trace.json").exists():
        document = json.loads((at / "trace.json").read_text())
        numbers = {
            event["pid"] for event in document["traceEvents"]
            if event.get("name") == "process_name" and event["args"]["name"].startswith("operators")
        }  # fmt: skip
        document["traceEvents"] = [event for event in document["traceEvents"] if event["pid"] not in numbers]
        (target / "trace.json.gz").write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    with (target / "metrics.csv").open(newline="") as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)][2:]
    return sum(seconds) / len(seconds) + float(status["saving_seconds"])


def main(names: list[str]) -> None:
    facts_file, known = FOLDER / "facts.csv", {}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "layers.json").write_text(json.dumps(profile_document(), indent=1) + "\n")
    if facts_file.exists():
        with facts_file.open(newline="") as file:
            known = {row["run"]: row for row in csv.DictReader(file)}
    for name in names or RUNS:
        seconds = record(name)
        known[name] = {"run": name, "causes": " ".join(RUNS[name].causes), "mean_seconds": f"{seconds:.4f}"}
        print(name, f"{seconds:.3f}", flush=True)
        _write_facts(facts_file, known)


def _write_facts(path: Path, known: dict[str, dict[str, str]]) -> None:
    """Write what was injected and what it cost: of padding the share of the step that is spent on it."""
    rows = []
    for name in (name for name in RUNS if name in known):
        row, run = known[name], RUNS[name]
        saving = ""
        if run.reference in known:
            mean = float(row["mean_seconds"])
            left = float(known[run.reference]["mean_seconds"])
            saving = f"{mean - left * (1.0 - run.fault.padded):.4f}"
        rows.append(row | {"reference": run.reference, "saving_seconds": saving})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, ("run", "causes", "mean_seconds", "reference", "saving_seconds"), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
