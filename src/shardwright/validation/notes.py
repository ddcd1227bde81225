"""What the notes of a published run say that has no column: the phrases that are understood, in one table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

SPECIAL = r"([0-9.]+) TB/s, ([0-9.]+) W"
MACHINES, PSEUDO_LAYERS = r"([0-9]+)x ([a-z0-9]+\.[a-z0-9]+)", r"pseudo-layers \[([0-9, ]+)\]"
BLOCK = r"recompute block num_layers=([0-9]+)"
# What notes say or do not say, by field of `Notes`.
SAID = {
    "optimizer_offload": r"optimizer offload|cpu offload \(optimizer\) yes",
    "attention_adapters": r"attention adapters only",
    "fused_loss": r"\bliger\b",
    "first_dense": r"first layer dense",
    "few_steps": r"few steps|steady iterations",
    "rounded": r"digitised|back-computed|computed from rounded",
    "flagged": r"\bflag\b|possible outlier|severe regression",
}
# Every phrase that the table of published runs keeps, with the words to keep of it ("": as found).
PHRASES: tuple[tuple[str, str], ...] = (
    *((pattern, "") for pattern in (SAID["optimizer_offload"], SPECIAL, SAID["first_dense"], MACHINES, PSEUDO_LAYERS)),
    (r"\blora\b", "LoRA"),
    (SAID["attention_adapters"], ""),
    (SAID["fused_loss"], "Liger"),
    (r"per-op sac", "per-op SAC"),
    (r"recompute_modules=[^;]+", ""),
    (BLOCK, ""),
    (r"\betp=[0-9]+", ""),
    (r"pp_layout=[^; ]+", ""),
    (r"MTP layers [0-9]+", ""),
    (r"reshard_after_forward=False", ""),
    *((SAID[name], "") for name in ("few_steps", "rounded", "flagged")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What notes say. None and "" mean: nothing of it. `special` are bytes per second and watts of a GPU unlike the
    catalogue's, `block_layers` the layers of a stage that run again, `machines` counts with their types, `boundaries`
    those of stages in the layers of the source, which may count others too."""

    optimizer_offload: bool
    attention_adapters: bool
    fused_loss: bool
    first_dense: bool
    few_steps: bool
    rounded: bool
    flagged: bool
    special: tuple[float, float] | None
    block_layers: int | None
    machines: tuple[tuple[int, str], ...]
    boundaries: tuple[int, ...]


@lru_cache(maxsize=4096)
def notes_of(text: str) -> Notes:
    """Return what notes say."""
    special, block, boundaries = (_found(pattern, text) for pattern in (SPECIAL, BLOCK, PSEUDO_LAYERS))
    return Notes(
        **{name: _found(pattern, text) is not None for name, pattern in SAID.items()},
        special=(float(special[1]) * 1e12, float(special[2])) if special else None,
        block_layers=int(block[1]) if block else None,
        machines=tuple((int(count), kind) for count, kind in re.findall(MACHINES, text)),
        boundaries=tuple(map(int, boundaries[1].split(","))) if boundaries else (),
    )


def phrases(text: str) -> str:
    """Return the phrases of notes that are kept, each once, in the order of `PHRASES`."""
    matches: list[str] = []
    for pattern, words in PHRASES:
        matches += [words or match[0].strip() for match in re.finditer(pattern, text, re.IGNORECASE)]
    return "; ".join(dict.fromkeys(matches))


def _found(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.IGNORECASE)
