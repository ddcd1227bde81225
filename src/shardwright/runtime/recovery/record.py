"""What a recovery took, by its parts, as a line of the log and a line of `recoveries.jsonl`. No PyTorch."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shardwright.plans.plan import Plan
from shardwright.recovery.quorum import Generation
from shardwright.recovery.transfer import TIERS
from shardwright.runtime.recovery.needs import Movement
from shardwright.units import counted, format_bytes, format_seconds

RECOVERIES = "recoveries.jsonl"


@dataclass(kw_only=True)
class Recovery:
    """One way from a generation to the next: its cause, when that was noticed, and the seconds of each part: attempts
    that failed, until all were halted, until state and processes were in order, for the plan, for moving, until all
    could train."""

    cause: str
    began: float
    seconds: dict[str, float] = field(default_factory=dict)
    moved_bytes: dict[str, int] = field(default_factory=dict)
    predicted_seconds: float = 0.0
    generation: int = 0
    machines: tuple[str, ...] = ()
    step: int = 0
    ranks: int = 0

    def lap(self, part: str) -> None:
        """End a part."""
        self.seconds[part] = time.monotonic() - self.began - sum(self.seconds.values())

    def moved(self, moves: Movement) -> None:
        """Note what a plan of transfers moves, by where it comes from."""
        t = moves.plan.transfers
        for place, local in (("own", True), ("peers'", False)):
            for tier, name in enumerate(TIERS[:2]):
                chosen = (t.tier == tier) & (t.local == local)
                self.moved_bytes[f"{place} {name}"] = int(t.size_bytes[chosen].sum())
        self.moved_bytes["cloud"] = int(t.size_bytes[t.tier == len(TIERS) - 1].sum())
        self.predicted_seconds = moves.plan.seconds

    def reached(self, generation: Generation, step: int, plan: Plan) -> None:
        """Note where the run goes on."""
        self.generation, self.machines, self.step, self.ranks = generation.number, generation.names, step, plan.gpus

    def tell(self, out: Path) -> None:
        """Log it."""
        parts = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in self.seconds.items())
        sources = ", ".join(f"{format_bytes(size)} from {name}" for name, size in self.moved_bytes.items() if size)
        moved = f"; {sources}" if sources else ""
        ranks, machines = counted(self.ranks, "rank"), counted(len(self.machines), "machine")
        goes = "goes" if self.ranks == 1 else "go"
        print(
            f"generation {self.generation} ({self.cause}): {ranks} on {machines} {goes} on at step {self.step}; "
            f"{parts}{moved}",
            file=sys.stderr,
            flush=True,
        )
        document: dict[str, Any] = asdict(self) | {"began": time.time()}
        with (out / RECOVERIES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")
