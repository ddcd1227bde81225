"""Steps in the object store: they are there when all machines have put their parts and the manifest is written. No
PyTorch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardwright.recovery.transfer import CLOUD
from shardwright.runtime.job.course import RunIdentity
from shardwright.runtime.recovery.channel import Message
from shardwright.runtime.recovery.cloud import Cloud
from shardwright.runtime.recovery.errands import Errands
from shardwright.runtime.recovery.inventory import HeldPiece, cover
from shardwright.runtime.recovery.options import KeeperOptions
from shardwright.runtime.recovery.patience import answered
from shardwright.runtime.recovery.rows import pieces_of
from shardwright.runtime.storage.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """The parts of steps that have come, by step and the generation that wrote it, and machine; and the manifests that
    are being written."""

    options: KeeperOptions
    run: RunIdentity
    cloud: Cloud
    parts: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    errands: Errands = field(default_factory=lambda: Errands(what="the object store"))

    def take(self, name: str, message: Message, machines: Collection[str]) -> None:
        """Note that a machine has put its part of a step; when all have, the step is one."""
        step, generation = message["step"], message["of_generation"]
        parts = self.parts.setdefault((step, generation), {})
        parts[name] = message["rows"]
        if parts.keys() >= set(machines):
            for old in [key for key in self.parts if key[0] <= step]:
                del self.parts[old]
            rows = [row for part in parts.values() for row in part]
            self.errands.begin(self._commit(step, rows, message["scale"]))

    async def _commit(self, step: int, rows: Sequence[Any], scale: Any) -> None:
        manifest = await asyncio.to_thread(self._manifest, step, rows, scale)
        if manifest is None:
            print(f"step {step} in the object store is not whole, and is not committed", file=sys.stderr, flush=True)
            return
        await answered(self.cloud.what, partial(self.cloud.commit, manifest))
        await answered(self.cloud.what, partial(self.cloud.keep_newest, self.options.settings.keep))

    def _manifest(self, step: int, rows: Sequence[Any], scale: Any) -> Manifest | None:
        """Return the manifest of a step of these pieces, None where they are not all of it."""
        held = [HeldPiece(machine="", tier=CLOUD, step=step, generation=0, stored=stored) for stored in pieces_of(rows)]
        pieces = cover(held, self.run.shapes, self.run.kinds)
        if pieces is None:
            return None
        course = self.run.course
        return Manifest(
            step=step,
            model=self.run.model,
            settings=course.settings,
            data={**course.data, "samples": self.run.origin + step * self.options.plan.job.global_batch},
            random=course.random,
            loss_scale=scale,
            parameters=self.run.shapes,
            pieces=tuple(items[0].stored for items in pieces.values()),
        )
