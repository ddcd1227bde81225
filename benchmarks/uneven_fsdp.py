"""Uneven FSDP and synthesised programs on processes of unequal speed, against PyTorch's DDP and FSDP2 and against their
predictions.

    PYTHONPATH=. python benchmarks/uneven_fsdp.py [--out docs/uneven-figures.md]

Two processes run fast, two slowly (`throttled`). A first run of equal copies measures every layer, and the shares of
uneven FSDP are planned from that profile alone; another measures whole steps, from which the program is synthesised.
Then steps of both, of the trainer with even shares, of DDP and of FSDP2 (`fully_shard`, layer by layer) take turns in
the same processes: the same model, optimizer and number of rows. DDP and FSDP2 run a row at a time, as under
accumulation, and all rows at once. Last, the most that the tensors of each rank take at a time, for a larger model that
is not slowed down. Needs PyTorch.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

try:
    import torch.distributed as dist
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

import synthesised
import torch_rivals
from runtime_unequal import alternate
from runtime_workers import batch_of, cpu_cluster, engine_of, llama, plan_of, run_workers, stage
from tests.spmd.peaks import Peak
from throttled import PROCESSES, Throttle, arguments, duties, whole

from shardwright import Cluster, measured_layers
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.files import write_atomically
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Schedule
from shardwright.runtime.step.engine import Engine, train_step
from shardwright.runtime.timing.layer_profile import profile_document
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import parse_pins
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.read.layer_profile import layer_profile
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.program import Program

MODEL, SEQ_LEN = llama(256, 4, 1024), 64
BUSY = 0.5  # of a core's time that others may take before a line says so


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=28, help="rows of a step")
    parser.add_argument("--out", type=Path, help="write the figures to this page")
    options = parser.parse_args()
    shares, each = duties(options), options.batch // 4
    cluster = cpu_cluster(**PROCESSES)
    copies = plan_of(
        MODEL, cluster, SEQ_LEN, whole(MODEL, "fast", 2, each), whole(MODEL, "slow", 2, each), micro_batch=1
    )
    document = layer_profile(
        profile_document(copies, [own for _, own in run_workers(4, alternate, [copies], shares, 3)])
    )
    profile = measured_layers(default_efficiency(), document, MODEL, cluster, copies.job)
    ranking = search(MODEL, cluster, copies.job, efficiency=profile, space=parse_pins(["sharding=zero3"]))
    _, uneven, even = (entry.plan for entry in ranking.kinds)
    assert uneven is not None and even is not None, "both fit"
    plans = [replace(plan, prediction=predict(plan, profile)) for plan in (uneven, even)]
    reached = run_workers(4, synthesised.measure, MODEL, SEQ_LEN, shares)
    graph, program = synthesised.program_of(
        MODEL, options.batch, SEQ_LEN, synthesised.machines_of(MODEL, SEQ_LEN, reached)
    )
    timed = run_workers(4, take_turns, plans, (graph, program), shares, options.rounds)
    predicted = [found.iteration_seconds for found in plans]
    predicted.insert(1, program.seconds)
    lines = [
        *times_table(timed, predicted),
        "",
        f"Two processes compute {options.duty:.3f} of the time, two {options.times_slower:g} times less; "
        f"{MODEL.name}, {options.batch} rows of {SEQ_LEN} tokens, fp32, medians of {options.rounds} steps.{busy()}",
        "",
        *(f"* {name}: {shared(plan)}" for name, plan in zip(("uneven FSDP", "even FSDP"), plans, strict=True)),
        f"* program: {ratios(program)}",
        "",
        *memory_table(cluster),
    ]
    print("\n".join(lines))
    if options.out is not None:
        write_atomically(options.out, "\n".join([*HEAD, *lines, ""]))


HEAD = [
    "# Uneven FSDP and programs, measured",
    "",
    "`benchmarks/uneven_fsdp.py --out docs/uneven-figures.md` wrote this page: gloo processes that run at unequal",
    "speed, all rivals in the same run, predictions from what was measured before there was a plan or a program.",
    "",
]


def busy() -> str:
    """Return a sentence if others keep the cores busy."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return f" Others kept the cores busy (load {load:.1f} a core)." if load > BUSY else ""


def take_turns(
    rank: int, plans: Sequence[Plan], found: tuple[Graph, Program], shares: dict[str, float], rounds: int
) -> dict[str, float]:
    """Return the median seconds of a step of each."""
    engines = [engine_of(plan, rank) for plan in plans]
    throttle = Throttle(synthesised.duty_of(rank, shares))
    steps: dict[str, Callable[[int], None]] = {
        "uneven FSDP": trainer(engines[0], throttle),
        "program": synthesised.stepper(*found, Throttle(throttle.duty, patience=synthesised.PATIENCE)),
        "even FSDP": trainer(engines[1], throttle),
    }
    for sharded, name in enumerate(("DDP", "FSDP2")):
        for at_once in (False, True):
            label = f"{name}, {'rows at once' if at_once else 'row by row'}"
            steps[label] = torch_rivals.stepper(rank, plans[0], throttle, sharded=bool(sharded), at_once=at_once)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            dist.barrier()
            begin = time.perf_counter()
            step(number)
            dist.barrier()
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def trainer(engine: Engine, throttle: Throttle) -> Callable[[int], None]:
    """Return a step of the trainer."""
    batch = batch_of(engine.layout.plan, engine.place.first_sample)

    def note(doing: str) -> None:
        if doing.startswith("computing"):
            throttle.start()

    def step(number: int) -> None:
        train_step(engine, batch, number, note=note, record=lambda _: throttle.pay())

    return step


def trainer_bytes(rank: int, plan: Plan) -> float:
    """Return the most bytes that tensors of the trainer take at a time, from before there is an engine on."""

    def train() -> None:
        engine = engine_of(plan, rank)
        batch = batch_of(plan, engine.place.first_sample)
        for number in range(2):
            train_step(engine, batch, number)

    return peak_bytes(train)


def program_bytes(rank: int, graph: Graph, program: Program) -> float:
    """Return the most bytes that tensors of a program take at a time on this rank."""

    def train() -> None:
        step = synthesised.stepper(graph, program, Throttle(1.0))
        for number in range(2):
            step(number)

    return peak_bytes(train)


def peak_bytes(train: Callable[[], None]) -> float:
    with Peak() as seen:
        train()
    return float(seen.most)


def shared(plan: Plan) -> str:
    """Return the shares of a plan in a line."""
    return ", ".join(
        f"{replica.count} x {replica.stages[0].gpu} {replica.rows} rows and "
        f"{(replica.state or 0) / (plan.optimizer.parts or 1):.3f} of the state"
        for replica in plan.replicas
    )


def ratios(program: Program) -> str:
    """Return the shares of a program in a line."""
    rows = (f"{name} {' '.join(f'{share:.3f}' for share in row)}" for name, row in sorted(program.shares.items()))
    return "; ".join(rows)


def times_table(timed: Sequence[dict[str, float]], predicted: Sequence[float]) -> list[str]:
    """Return measured and predicted seconds of a step as a table."""
    medians = {name: max(own[name] for own in timed) for name in timed[0]}
    lines = ["| | measured | predicted | error | over uneven FSDP | over the program |", "|---|---|---|---|---|---|"]
    for place, (name, found) in enumerate(medians.items()):
        guess = "– | –"
        if place < len(predicted):
            guess = f"{predicted[place]:.3f} s | {predicted[place] / found - 1:+.1%}"
        over = [f"{found / medians[rival]:.2f}" for rival in ("uneven FSDP", "program")]
        lines.append(f"| {name} | {found:.3f} s | {guess} | {' | '.join(over)} |")
    return lines


def skewed(cluster: Cluster, hidden: int, layers: int, seq_len: int) -> Plan:
    """Return a plan in which fast processes keep 0.35 of the state each."""
    model = llama(hidden, layers, 8 * hidden)
    plain = plan_of(model, cluster, seq_len, whole(model, "fast", 2, 4), whole(model, "slow", 2, 2), micro_batch=1)
    fast, slow = (
        replace(own, rows=own.micro_batches, state=state, stages=(stage(own.stages[0].gpu, (0, layers)),))
        for own, state in zip(plain.replicas, (7, 3), strict=True)
    )
    return replace(
        plain,
        job=replace(plain.job, framework=OWN),
        replicas=(fast, slow),
        schedule=Schedule(kind="layered", waves=1),
        optimizer=OptimizerPlan(sharding="zero3", parts=20),
        overlap=Overlap(grad_reduce=True, param_gather=True),
    )


def memory_table(cluster: Cluster) -> list[str]:
    """Return the peak memory of each rank beside the plan's and the program's, for a larger model; the plan has skewed
    shares of the state, the program as much memory as makes it share the state."""
    plan = skewed(cluster, 512, 6, 256)
    pairs = zip(predict(plan, default_efficiency()).memory, plan.replicas, strict=True)
    each = [row[0] for row, replica in pairs for _ in range(replica.count)]
    planned = [own.total_bytes - own.context_bytes for own in each]
    lines = [f"Peak memory, {plan.model.name}, 12 rows of 256 tokens:", ""]
    lines += ["| | rank | measured | planned | error |", "|---|---|---|---|---|"]
    lines += _memory_rows("uneven FSDP", run_workers(4, trainer_bytes, plan), planned)
    graph, program = synthesised.roomy_program(plan.model, 12, 256)
    return [
        *lines,
        *_memory_rows("program", run_workers(4, program_bytes, graph, program), program.notes["memory_bytes"]),
    ]


def _memory_rows(name: str, measured: Sequence[float], planned: Sequence[float]) -> list[str]:
    return [
        f"| {name} | {rank} | {found / 1e6:.0f} MB | {own / 1e6:.0f} MB | {own / found - 1:+.1%} |"
        for rank, (found, own) in enumerate(zip(measured, planned, strict=True))
    ]


if __name__ == "__main__":
    main()
