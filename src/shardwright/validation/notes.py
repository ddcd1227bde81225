"""What the notes of a published run say that has no column: the phrases that are understood, in one table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

NETWORK, RENTED, SPECIAL = r"([0-9.]+) Gbps node-node", r"AWS (p[0-9][a-z]*)", r"([0-9.]+) TB/s, ([0-9.]+) W"
MACHINES, PSEUDO_LAYERS = r"([0-9]+)x ([a-z0-9]+\.[a-z0-9]+)", r"pseudo-layers \[([0-9, ]+)\]"
BLOCK = r"recompute block num_layers=([0-9]+)"
# What notes say or do not say, by field of `Notes`.
SAID = {
    "flash": r"flash",
    "unfused": r"attention-backend unfused",
    "mxfp8": r"mxfp8",
    "blockwise": r"rowwise|blockwise",
    "no_overlap": r"no tp/pp/dp overlap",
    "async_tp": r"async tp|asynctp",
    "optimizer_offload": r"optimizer offload|cpu offload \(optimizer\) yes",
    "attention_adapters": r"attention adapters only",
    "fused_loss": r"\bliger\b",
    "eager": r"\beager\b",
    "first_dense": r"first layer dense",
    "few_steps": r"few steps|steady iterations",
    "rounded": r"digitised|back-computed|computed from rounded",
    "flagged": r"\bflag\b|possible outlier|severe regression",
}
# Every phrase that the table of published runs keeps, with the words to keep of it ("": as found).
PHRASES: tuple[tuple[str, str], ...] = (
    (SAID["no_overlap"], "no TP/PP/DP overlap"),
    (SAID["flash"], "flash attention"),
    *((pattern, "") for pattern in (SAID["async_tp"], SAID["optimizer_offload"], NETWORK, RENTED, SPECIAL)),
    (f"{SAID['mxfp8']}|{SAID['blockwise']}", ""),
    *((pattern, "") for pattern in (SAID["eager"], SAID["first_dense"], MACHINES, PSEUDO_LAYERS)),
    (r"\blora\b", "LoRA"),
    (SAID["attention_adapters"], ""),
    (SAID["fused_loss"], "Liger"),
    (SAID["unfused"], ""),
    (r"torch\.compile", ""),
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
    """What notes say. None and "" mean: nothing of it. `network_gbps` are Gbit/s of one machine, `special` bytes per
    second and watts of a GPU unlike the catalogue's, `block_layers` the layers of a stage that run again, `machines`
    counts with their types, `boundaries` those of stages in the layers of the source, which may count others too."""

    flash: bool
    unfused: bool
    mxfp8: bool
    blockwise: bool
    no_overlap: bool
    async_tp: bool
    optimizer_offload: bool
    attention_adapters: bool
    fused_loss: bool
    eager: bool
    first_dense: bool
    few_steps: bool
    rounded: bool
    flagged: bool
    rented: str
    network_gbps: float | None
    special: tuple[float, float] | None
    block_layers: int | None
    machines: tuple[tuple[int, str], ...]
    boundaries: tuple[int, ...]


@lru_cache(maxsize=4096)
def notes_of(text: str) -> Notes:
    """Return what notes say."""
    network, special, block = _found(NETWORK, text), _found(SPECIAL, text), _found(BLOCK, text)
    rented, boundaries = _found(RENTED, text), _found(PSEUDO_LAYERS, text)
    return Notes(
        **{name: _found(pattern, text) is not None for name, pattern in SAID.items()},
        rented=rented[1] if rented else "",
        network_gbps=float(network[1]) if network else None,
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
