"""The samples of a rank, read one step ahead by a thread of their own, into memory that a GPU copies from by itself.

Those that it does not train on are always the same, whatever seed and plan. Of models that see all of a sequence some
tokens are hidden (BERT, arXiv 1810.04805 §3.1): which, and as what, depends on the seed and the number of the sample
alone, so that every plan trains alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray

from shardwright.records import record
from shardwright.runtime.job.course import held_out_samples
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.layout.groups import Place
from shardwright.runtime.step.engine import Engine, evaluate
from shardwright.runtime.step.pipeline import Batch
from shardwright.runtime.storage.mixture import Mixture

SHARE = 0.15  # of a sample's tokens; of these 8 in 10 become the mask, 1 in 10 any token, and 1 in 10 stays
MASKED, RANDOM = 0.8, 0.9
NO_TARGET = -1


class Feed:
    """What a rank reads: its copy's part of the samples of each global batch, which begins at sample `origin` + step
    times the batch. `waited_seconds` are those in which the last step waited for its samples."""

    def __init__(self, engine: Engine, samples: Mixture, origin: int = 0) -> None:
        self._engine, self._samples, self._origin = engine, samples, origin
        self._reader = ThreadPoolExecutor(1, "feed")
        self._ahead: dict[int, Future[torch.Tensor]] = {}
        self._reads = 0 in engine.place.units or engine.layout.head in engine.place.units
        self.waited_seconds = 0.0

    def batch(self, step: int) -> Batch:
        """Return the micro-batches of this rank's copy in a step, once they are there where the rank has the embedding
        or the head, and begin to read those of the next. Raises SpecError for a token that is not in the vocabulary."""
        began = time.perf_counter()
        rows = self._ahead.pop(step, None) or self._reader.submit(self._rows, step)
        self._ahead = {step + 1: self._reader.submit(self._rows, step + 1)}
        if self._reads:
            rows.result()
        self.waited_seconds = time.perf_counter() - began
        return _batch(rows.result, self._engine.place, self._engine.pipeline.device)

    def _rows(self, step: int) -> torch.Tensor:
        """Return what the model sees of the samples of a step, and its targets, [2, samples, length]."""
        plan, place = self._engine.layout.plan, self._engine.place
        first = self._origin + step * plan.job.global_batch + place.first_sample
        rows = self._samples.rows(first, sum(place.sizes))
        seen, targets = rows[:, :-1], rows[:, 1:]
        mask = plan.model.computed.mask_token
        if not plan.model.causal and mask is not None:
            seen, targets = hidden_tokens(seen, first, self._samples.seed, mask, plan.model.vocab)
        both = torch.from_numpy(np.stack([seen, targets]))
        return both.pin_memory() if self._engine.pipeline.device.type == "cuda" else both


def _batch(rows: Callable[[], torch.Tensor], place: Place, device: torch.device) -> Batch:
    def batch(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, count = place.samples(micro_batch)
        begin = first - place.first_sample
        seen, targets = rows()[:, begin : begin + count].to(device, non_blocking=True)
        return seen, targets

    return batch


@record
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


def hidden_tokens(
    rows: NDArray[np.int64], first: int, seed: int, mask: int, vocab: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what a model sees of samples [count, length] that begin with the `first`, and what it is to find there,
    `NO_TARGET` at tokens that are not hidden. As many are hidden in every sample."""
    seen, targets = rows.copy(), np.full_like(rows, NO_TARGET)
    count = max(round(SHARE * rows.shape[1]), 1)
    for row, (tokens, wanted) in enumerate(zip(seen, targets, strict=True)):
        generator = np.random.default_rng((seed, first + row))
        places = generator.permutation(rows.shape[1])[:count]
        wanted[places] = tokens[places]
        lot, others = generator.random(count), generator.integers(vocab, size=count)
        tokens[places] = np.where(lot < MASKED, mask, np.where(lot < RANDOM, others, tokens[places]))
    return seen, targets
