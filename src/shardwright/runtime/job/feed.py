"""The samples of a rank, read one step ahead by a thread of their own, into memory that a GPU copies from by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from shardwright.runtime.job.masked_tokens import hidden_tokens
from shardwright.runtime.layout.places import Place
from shardwright.runtime.step.engine import Engine
from shardwright.runtime.step.pipeline import Batch
from shardwright.runtime.storage.mixture import Mixture


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
