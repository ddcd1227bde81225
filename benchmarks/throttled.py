"""Processes that run at unequal speed: each computes for a part of the time and sleeps for the rest.

What counts is processor time, so the other work of a machine disturbs little as long as all duties together stay well
below its cores. Communication, which runs beside the sleep, the update and the sums of gradients are not slowed down.
Needs PyTorch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

try:
    import torch
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from runtime_workers import stage

from shardwright.plans.plan import Replica
from shardwright.runtime.step.engine import Engine
from shardwright.spec.model import Model

PROCESSES = {"fast": 2, "slow": 2}


class Throttle:
    """Lets a rank compute for a part `duty` of the time: `start` when it begins, `pay` when it has computed. A debt of
    less than `patience` seconds waits for the next time, and what was slept too long counts as paid."""

    def __init__(self, duty: float, *, patience: float = 0.0) -> None:
        self.duty, self.patience, self.owed = duty, patience, 0.0
        self.start()

    def start(self) -> None:
        self.began, self.used = time.perf_counter(), time.thread_time()

    def pay(self) -> None:
        now = time.perf_counter()
        self.owed += max(self.began + (time.thread_time() - self.used) / self.duty - now, 0.0)
        if self.owed > self.patience:
            time.sleep(self.owed)
            self.owed -= time.perf_counter() - now
        self.start()


def observer(engine: Engine, throttle: Throttle) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """Return what is shown the activations of a step of the trainer: it sleeps after each unit, and when the gradient
    of its output is there, for what has been computed since."""
    last = [chunk.units[-1] for chunk in engine.pipeline.chunks]
    first = [chunk.units[0] for chunk in engine.pipeline.chunks]

    def observe(unit: int, x: torch.Tensor) -> torch.Tensor:
        throttle.start() if unit + 1 in first else throttle.pay()
        if x.requires_grad:
            tensor: Any = x
            tensor.register_hook(lambda _: throttle.start() if unit in last else throttle.pay())
        return x

    return observe


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows how many steps to time, and how fast processes run: `duties` reads its answer."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="steps of each")
    parser.add_argument("--duty", type=float, default=1 / 8, help="part of the time in which fast processes work")
    parser.add_argument("--times-slower", type=float, default=2.5, help="how much less the slow ones do")
    return parser


def duties(options: argparse.Namespace) -> dict[str, float]:
    """Return the part of the time in which processes of each kind work."""
    return {"fast": options.duty, "slow": options.duty / options.times_slower}


def whole(model: Model, gpu: str, count: int, micro_batches: int) -> Replica:
    """Return copies of the whole model on one process each."""
    return Replica(count=count, micro_batches=micro_batches, stages=(stage(gpu, (0, len(model.layers))),))
