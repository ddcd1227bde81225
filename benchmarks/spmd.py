"""What synthesis gains on HAP's cluster, all programs priced by one cost function.

.venv/bin/python -m benchmarks.spmd [part of a name …]

Two machines of 8 V100 and six of 8 P100. FLOP/s are those that HAP's artefact uses (its worker.py: model operations
over the wall time of one step on one GPU, fp32); links are NVLink and PCIe, the network is 10.4 Gbit/s a machine. Data
parallel sends gradients in buckets of 25 MB. Rows marked * are those on which synthesis was expected to win before any
was run: few samples a GPU, large vocabularies, wide fully connected layers, experts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from tests.synthesis.least import least_seconds
from tests.synthesis.models import BERT_BASE, GPT2, LLAMA_1B, WithCapacity, vision
from tests.synthesis.vgg import fully_connected, vgg19

from shardwright.arrays import Bools
from shardwright.synthesis import baselines
from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import Decisions, decisions
from shardwright.synthesis.graph import COMPUTE, STATE, Graph
from shardwright.synthesis.machines import Device, DeviceMachine, Machines
from shardwright.synthesis.models.transformers import Transformer, language_model
from shardwright.synthesis.prices import Prices, RankShares
from shardwright.synthesis.synthesize import ProgramProblem, in_whole_units, search

V100 = Device(name="V100", flops_per_second=3.86e12, memory_bytes=16e9)
P100 = Device(name="P100", flops_per_second=2.15e12, memory_bytes=16e9)
GAP = 5e-3
IMAGE_DIMS = 4


def cluster(fast: int, slow: int) -> Machines:
    """Return `fast` machines of 8 V100 and `slow` of 8 P100."""
    machines = [DeviceMachine(device=V100, gpus=8, link_bytes_per_second=120e9)] * fast
    machines += [DeviceMachine(device=P100, gpus=8, link_bytes_per_second=10e9)] * slow
    return Machines(machines=tuple(machines), network_bytes_per_second=1.3e9)


HAP = cluster(2, 6)
TWO = cluster(1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model at `rows` samples a GPU; `expected` marks those on which synthesis should win. The column `least` takes
    into account so many `boxes` of ratios; `free` one, in which each operator may have ratios of its own."""

    name: str
    input: str
    rows: int
    graph: Callable[[int], Graph]
    net: Machines = HAP
    expected: bool = False
    boxes: int = 2


def _language(dims: Transformer, seq_len: int) -> Callable[[int], Graph]:
    return lambda batch: language_model(dims, batch=batch, seq_len=seq_len)


def _experts(count: int) -> Callable[[int], Graph]:
    return _language(replace(BERT_BASE, experts=WithCapacity(count=count, width=3072)), 128)


def _vgg(image: int) -> Callable[[int], Graph]:
    return lambda batch: vgg19(batch=batch, image=image)


def _vit(batch: int) -> Graph:
    return vision(Transformer(), batch=batch)


def _stack(*widths: int) -> Callable[[int], Graph]:
    return lambda batch: fully_connected(batch=batch, widths=widths)


BERT, GPT = _language(BERT_BASE, 128), _language(GPT2, 128)
WIDE_VOCABULARY, LLAMA = _language(replace(GPT2, vocabulary=200_000), 128), _language(replace(LLAMA_1B, layers=4), 128)
CASES = (
    Case(name="VGG-19", input="32×32", rows=32, graph=_vgg(32), expected=True, boxes=16),
    Case(name="VGG-19", input="224×224", rows=32, graph=_vgg(224)),
    Case(name="ViT-B", input="197 tokens", rows=32, graph=_vit),
    Case(name="BERT-Base", input="128 tokens", rows=32, graph=BERT),
    Case(name="BERT-MoE, 16 experts", input="128 tokens", rows=32, graph=_experts(16), expected=True),
    Case(name="BERT-MoE, 128 experts", input="128 tokens", rows=32, graph=_experts(128)),
    Case(name="BERT-Base, two machines", input="128 tokens", rows=32, graph=BERT, net=TWO, boxes=32),
    Case(name="VGG-19", input="224×224", rows=8, graph=_vgg(224), expected=True),
    Case(name="VGG-19", input="224×224", rows=2, graph=_vgg(224), expected=True),
    Case(name="ViT-B", input="197 tokens", rows=8, graph=_vit, expected=True),
    Case(name="ViT-B", input="197 tokens", rows=2, graph=_vit, expected=True),
    Case(name="BERT-Base", input="128 tokens", rows=8, graph=BERT, expected=True),
    Case(name="BERT-Base", input="128 tokens", rows=2, graph=BERT, expected=True),
    Case(name="GPT-2", input="128 tokens", rows=8, graph=GPT, expected=True),
    Case(name="GPT-2", input="128 tokens", rows=2, graph=GPT, expected=True),
    Case(name="GPT-2, 200k tokens", input="128 tokens", rows=8, graph=WIDE_VOCABULARY, expected=True),
    Case(name="Llama, 4 layers of 1B", input="128 tokens", rows=2, graph=LLAMA, expected=True),
    Case(name="3 layers of 8192", input="8192 features", rows=32, graph=_stack(8192, 8192, 8192, 1000), expected=True),
    Case(name="100k classes", input="2048 features", rows=32, graph=_stack(2048, 2048, 100_000), expected=True),
    Case(name="BERT-MoE, 16 experts", input="128 tokens", rows=8, graph=_experts(16), expected=True),
)
COLUMNS = ("DP-EV", "DP-CP", "DDP-EV", "DDP-CP", "FSDP", "layers", "HAP", "HAP+ov", "ours")


def main() -> None:
    """Print a row for each case whose name is asked for."""
    asked = [word.lower() for word in sys.argv[1:]]
    print("fp32; FLOP/s: HAP's artefact, V100 3.86e12, P100 2.15e12; seconds a step")
    print(f"| model | rows | {' | '.join(COLUMNS)} | bound | least | free | search |")
    for case in CASES:
        label = f"{case.name} {case.input} {case.rows}".lower()
        if not asked or any(word in label for word in asked):
            report(case)


def report(case: Case) -> None:
    """Print one row."""
    graph = case.graph(case.rows * case.net.ranks)
    space = decisions(graph, ranks=case.net.ranks, state_ratio=True)
    kept = replace(space, kept=True)
    row = {}
    for name, start, overlap, rules in rivals(case.net):
        for gathered in (kept, space):
            seconds = rival(gathered, case.net, start, overlap=overlap, rules=rules)
            row[name] = min(row.get(name, np.inf), seconds)
    begin = time.process_time()
    found = search(graph, case.net, gap=GAP)
    spent = time.process_time() - begin
    row["ours"] = found.choice.seconds.total
    cells = [f"{row[name]:.3f}" if np.isfinite(row[name]) else "no fit" for name in COLUMNS]
    label = f"{case.name}, {case.input}{' *' if case.expected else ''}"
    least, free = (least_seconds(kept, case.net, boxes=boxes) for boxes in (case.boxes, 1))
    more = f"{found.choice.bound_seconds:.3f} | {least:.3f} | {free:.3f} | {spent:.1f}"
    print(f"| {label} | {case.rows} | {' | '.join(cells)} | {more} |")
    better = min(row["DDP-CP"], row["FSDP"])
    gains = ("DP-EV", "DDP-EV", "layers", "HAP", "HAP+ov")
    said = ", ".join(f"{name} {row[name] / row['ours']:.2f}×" for name in gains)
    print(f"<!-- over {said}, the better of DDP-CP and FSDP {better / row['ours']:.2f}× -->", flush=True)


def rivals(net: Machines) -> list[tuple[str, tuple[float, ...], bool, baselines.Rules]]:
    """Return name, shares, overlap and rules of each rival; of several of one name the best counts."""
    even, proportional = net.even(), net.proportional()
    return [
        ("DP-EV", even, False, baselines.data_parallel),
        ("DP-CP", proportional, False, baselines.data_parallel),
        ("DDP-EV", even, True, baselines.data_parallel),
        ("DDP-CP", proportional, True, baselines.data_parallel),
        ("FSDP", proportional, True, baselines.fsdp),
        ("layers", even, False, whole_layers),
        ("layers", proportional, False, whole_layers),
        ("HAP", even, False, baselines.hap),
        ("HAP", proportional, False, baselines.hap),
        ("HAP+ov", even, True, baselines.hap),
        ("HAP+ov", proportional, True, baselines.hap),
    ]


def whole_layers(space: Decisions, costs: Prices) -> Bools:
    """Return HAP's rules [R] with images by rows: data parallel, fully connected layers split by their outputs, and
    sufficient factors."""
    rows = baselines.batch_of(space)

    def allowed(decision: int, rule: int) -> bool:
        one = space.decisions[decision]
        if all(len(value.shape) != IMAGE_DIMS for value in (*one.node.outputs, *one.operands)):
            return True
        if one.node.op == "parameter":
            return one.rules[rule].cut is None
        return baselines.by_rows(one.rules[rule], rows) or not any(baselines.by_rows(some, rows) for some in one.rules)

    pairs = zip(costs.columns.decision.tolist(), costs.columns.rule.tolist(), strict=True)
    return baselines.hap(space, costs) & np.array([allowed(*pair) for pair in pairs])


def rival(
    space: Decisions, net: Machines, start: tuple[float, ...], *, overlap: bool,
    rules: baselines.Rules,
) -> float:  # fmt: skip
    """Return the seconds of the best program that takes only some rules; infinity if it does not fit."""
    shares = RankShares(exact={COMPUTE: start, STATE: net.even()})
    problem = ProgramProblem(space=space, net=net, gap=GAP, overlap=overlap)
    costs = problem.prices(shares)
    choice = best(space, costs, gap=GAP, allowed=rules(space, costs))
    whole = choice and in_whole_units(problem, choice, shares)
    return whole.seconds if whole else np.inf


if __name__ == "__main__":
    main()
