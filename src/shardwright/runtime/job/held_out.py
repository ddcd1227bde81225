"""The loss on data that a run does not train on: always the same samples, whatever seed and plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.runtime.job.feed import Feed
from shardwright.runtime.job.inputs import held_out_samples
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.step.engine import Engine
from shardwright.runtime.step.evaluation import evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """So many global batches of held-out data, and after how many steps each they are due (0: after the last)."""

    feed: Feed
    batches: int
    every: int

    def due(self, done: int, last: int) -> bool:
        return done == last or bool(self.every and done % self.every == 0)

    def loss(self, engine: Engine, note: Callable[[str], None]) -> float:
        """Return the mean loss over their tokens. Every rank must call it."""
        losses = [evaluate(engine, self.feed.batch(number), note) for number in range(self.batches)]
        return sum(losses) / len(losses)


def held_out(engine: Engine, settings: Settings) -> HeldOut | None:
    """Return the held-out data of a run, no sample twice."""
    plan = engine.layout.plan
    mixture = held_out_samples(settings, plan.job, plan.model.vocab)
    if mixture is None:
        return None
    batches = min(settings.evaluate_batches, mixture.parts[0].count // plan.job.global_batch)
    return HeldOut(feed=Feed(engine, mixture), batches=batches, every=settings.evaluate_every)
