"""A step under `torch.distributed`: unequal processes train like one, from and to the module's own state dict."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import torch
from tests.spmd.draws import drawn
from tests.spmd.models import build
from tests.spmd.processes import Job, run, train
from tests.spmd.programs import stored_bytes, whole
from torch import Tensor, nn

from shardwright.spmd.check import Masked, ThreadFabric, on_ranks
from shardwright.spmd.trace import trace
from shardwright.spmd.training import SpmdStep, state_names, whole_state
from shardwright.synthesis import graph as graphs
from shardwright.synthesis import program as programs
from shardwright.synthesis.rules.candidates import choices

RANKS, STEPS, CLIP = 3, 2, 0.5


def trained_alone(name: str) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Return losses, gradient norms and state of the untouched module, trained by PyTorch in one process."""
    module, batch, loss = build(name)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        with Masked(step):
            value = loss(module, batch)
        value.backward()
        losses.append(value.item())
        norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), CLIP)))
        optimizer.step()
    return losses, norms, module.state_dict()


def test_a_program_in_which_nothing_is_sharded_trains() -> None:
    module, batch, loss = build("bert")
    graph = trace(module, batch, loss)
    program = replace(whole(graph, RANKS), sizes={})
    state = whole_state(module)

    def losses(fabric: ThreadFabric) -> list[float]:
        step = SpmdStep(graph, program, fabric=fabric)
        step.receive(state if fabric.rank == 0 else None)
        optimizer = torch.optim.SGD(step.parameters(), lr=0.1, momentum=0.9)
        values = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            values.append(step(batch).item())
            step.clip_gradients(CLIP)
            optimizer.step()
        assert (step.state_dict().keys() == module.state_dict().keys()) == (fabric.rank == 0)
        return values

    for values in on_ranks(RANKS, losses):
        torch.testing.assert_close(values, trained_alone("bert")[0], rtol=1e-4, atol=1e-5)


def test_unequal_processes_train_like_one() -> None:
    jobs, expected, stored = [], [], []
    for seed, name in enumerate(("everything", "mixtral")):
        module, batch, loss = build(name)
        graph = trace(module, batch, loss)
        program = drawn(graph, choices(graph), RANKS, Random(seed))
        jobs.append(
            Job(
                graph=graphs.to_json(graph),
                program=programs.to_json(program),
                state={name: tensor.detach() for name, tensor in whole_state(module).items()},
                names=state_names(module),
                batch=batch,
                steps=STEPS,
                clip=CLIP,
            )
        )
        expected.append(trained_alone(name))
        stored.append(stored_bytes(graph, program))
    for outcome, (losses, norms, state), bytes_held in zip(run(train, jobs, RANKS), expected, stored, strict=True):
        torch.testing.assert_close(outcome.losses, losses, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(outcome.norms, norms, rtol=1e-3, atol=1e-5)
        assert outcome.state.keys() == state.keys()
        assert outcome.held_bytes == bytes_held
        for name, tensor in state.items():
            torch.testing.assert_close(outcome.state[name], tensor, rtol=1e-3, atol=1e-5)
