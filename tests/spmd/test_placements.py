"""Exported placements hold the bytes that a program's ranks hold, or of columns as many."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.cli.running import refused, run
from tests.spmd.models import build
from tests.spmd.processes import processes
from torch import Tensor

from shardwright.spmd.document import Synthesized, placements_text, save
from shardwright.spmd.shards import RankPlace, cut
from shardwright.spmd.trace import trace
from shardwright.spmd.training import state_names, whole_state
from shardwright.synthesis.baselines import STRATEGIES
from shardwright.synthesis.graph import STATE
from shardwright.synthesis.machines import Device, DeviceMachine, Machines
from shardwright.synthesis.synthesize import synthesize

RANKS = 2


@dataclass(frozen=True, kw_only=True)
class Job:
    """Placements as text, a state dict, and what each rank's shard of it is."""

    text: str
    state: dict[str, Tensor]
    parts: list[dict[str, Tensor]]


def fsdp(speeds: tuple[float, float]) -> tuple[Synthesized, dict[str, Tensor]]:
    """Return uneven FSDP for BERT on two machines of these speeds, the weights as unevenly stored, and its state."""
    module, batch, loss = build("bert")
    graph = trace(module, batch, loss)
    machines = [
        DeviceMachine(
            device=Device(name=f"gpu{speed:g}", flops_per_second=speed * 1e6), gpus=1, link_bytes_per_second=1e9
        )
        for speed in speeds
    ]
    net = Machines(machines=tuple(machines), network_bytes_per_second=1e9)
    program = synthesize(graph, net, rules=STRATEGIES["uneven-fsdp"])
    first = speeds[0] / sum(speeds)
    sizes = {
        (ratio, units): (round(units * first), units - round(units * first)) if ratio == STATE else row
        for (ratio, units), row in program.sizes.items()
    }
    found = Synthesized(graph=graph, program=replace(program, sizes=sizes), names=state_names(module))
    return found, {name: tensor.detach() for name, tensor in whole_state(module).items()}


def parts(found: Synthesized, state: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    held = {name: found.program.steps[ref.node].outputs[0] for name, ref in found.graph.parameters.items()}
    places = [RankPlace(rank=rank, sizes=found.program.sizes) for rank in range(RANKS)]
    return [{name: cut(state[name], held[name], place) for name in held} for place in places]


def distributed(job: Job, rank: int) -> None:
    """Give PyTorch the whole tensors with the placements, and hold its shards against the program's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    mesh, names = init_device_mesh("cpu", (RANKS,)), read(job.text)
    assert names["RANKS"] == RANKS and names["PARAMETERS"].keys() >= job.parts[rank].keys()
    for name, part in job.parts[rank].items():
        whole = distribute_tensor(job.state[name], mesh, names["PARAMETERS"][name])
        assert torch.equal(whole.to_local(), part), name
        assert torch.equal(whole.full_tensor(), job.state[name]), name


def read(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "placements.py", "exec"), names)
    return names


def test_an_even_program_is_dtensors_of_the_same_bytes() -> None:
    found, state = fsdp((1.0, 1.0))
    text = placements_text(found, "dtensor")
    assert text.count("Shard(0)") > 10
    with processes(RANKS) as do:
        do(distributed, Job(text=text, state=state, parts=parts(found, state)))


@dataclass(frozen=True)
class RaggedShard:
    """veScale's placement, as its documentation defines it: a tensor's memory in the proportions of `local_units`."""

    dims: tuple[int, ...]
    local_units: tuple[int, ...]

    def part(self, whole: Tensor, rank: int) -> Tensor:
        rest = whole.shape[len(self.dims) :]
        sizes = [whole.numel() * units // sum(self.local_units) for units in self.local_units]
        assert sum(sizes) == whole.numel() and self.dims == tuple(range(len(self.dims)))
        return whole.flatten().split(sizes)[rank].reshape(-1, *rest)


def test_an_uneven_program_is_ragged_shards_of_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    found, state = fsdp((2.0, 1.0))
    vescale = ModuleType("vescale.dtensor.placement_types")
    vescale.RaggedShard, vescale.Replicate = RaggedShard, lambda: None  # type: ignore[attr-defined]
    for name in ("vescale", "vescale.dtensor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, vescale.__name__, vescale)
    placements = read(placements_text(found, "vescale"))
    ragged = 0
    for rank, held in enumerate(parts(found, state)):
        for name, part in held.items():
            (placement,) = placements["PARAMETERS"][name]
            given = state[name] if placement is None else placement.part(state[name], rank)
            assert given.numel() == part.numel(), name
            if placement is None or placement.dims == (0,):
                assert torch.equal(given, part), name
                ragged += placement is not None and len(set(placement.local_units)) > 1
    assert ragged > 10
    assert sum(placements["ROWS"]["tokens"]) == 6


def test_what_a_placement_cannot_say_is_named(tmp_path: Path) -> None:
    found, _ = fsdp((2.0, 1.0))
    save(found, step := tmp_path / "step.json")
    message = refused(run(["spmd", "export", str(step), "--to", "dtensor", "-o", str(tmp_path / "out.py")]))
    assert "words.weight" in message and "where Shard has" in message and not (tmp_path / "out.py").exists()
    assert "one of dtensor, vescale" in refused(run(["spmd", "export", str(step), "--to", "fsdp"]))
    assert run(["spmd", "export", str(step), "--to", "vescale", "-o", str(tmp_path / "out.py")]).code == 0
    assert "RaggedShard(dims=(0,)" in (tmp_path / "out.py").read_text()
