"""What the notes of a published run say that has no column: the phrases that are understood, in one table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

FLASH, STILL, ADAPTERS, LIGER = r"flash", r"no tp/pp/dp overlap", r"attention adapters only", r"\bliger\b"
ASYNC_TP, OFFLOAD = r"async tp|asynctp", r"optimizer offload|cpu offload \(optimizer\) yes"
NETWORK, RENTED, SPECIAL = r"([0-9.]+) Gbps node-node", r"AWS (p[0-9][a-z]*)", r"([0-9.]+) TB/s, ([0-9.]+) W"
MXFP8, BLOCKWISE = r"mxfp8", r"rowwise|blockwise"
EAGER, FIRST_DENSE = r"\beager\b", r"first layer dense"
MACHINES, PSEUDO_LAYERS = r"([0-9]+)x ([a-z0-9]+\.[a-z0-9]+)", r"pseudo-layers \[([0-9, ]+)\]"
UNFUSED, BLOCK = r"attention-backend unfused", r"recompute block num_layers=([0-9]+)"
FEW_STEPS, ROUNDED = r"few steps|steady iterations", r"digitised|back-computed|computed from rounded"
FLAGGED = r"\bflag\b|possible outlier|severe regression"

# Every phrase that the table of published runs keeps, with the words to keep of it ("": as found).
PHRASES: tuple[tuple[str, str], ...] = (
    (STILL, "no TP/PP/DP overlap"),
    (FLASH, "flash attention"),
    *((pattern, "") for pattern in (ASYNC_TP, OFFLOAD, NETWORK, RENTED, SPECIAL, f"{MXFP8}|{BLOCKWISE}")),
    *((pattern, "") for pattern in (EAGER, FIRST_DENSE, MACHINES, PSEUDO_LAYERS)),
    (r"\blora\b", "LoRA"),
    (ADAPTERS, ""),
    (LIGER, "Liger"),
    (UNFUSED, ""),
    (r"torch\.compile", ""),
    (r"per-op sac", "per-op SAC"),
    (r"recompute_modules=[^;]+", ""),
    (BLOCK, ""),
    (r"\betp=[0-9]+", ""),
    (r"pp_layout=[^; ]+", ""),
    (r"MTP layers [0-9]+", ""),
    (r"reshard_after_forward=False", ""),
    (FEW_STEPS, ""),
    (ROUNDED, ""),
    (FLAGGED, ""),
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
        flash=_found(FLASH, text) is not None,
        unfused=_found(UNFUSED, text) is not None,
        mxfp8=_found(MXFP8, text) is not None,
        blockwise=_found(BLOCKWISE, text) is not None,
        no_overlap=_found(STILL, text) is not None,
        async_tp=_found(ASYNC_TP, text) is not None,
        optimizer_offload=_found(OFFLOAD, text) is not None,
        attention_adapters=_found(ADAPTERS, text) is not None,
        fused_loss=_found(LIGER, text) is not None,
        eager=_found(EAGER, text) is not None,
        first_dense=_found(FIRST_DENSE, text) is not None,
        few_steps=_found(FEW_STEPS, text) is not None,
        rounded=_found(ROUNDED, text) is not None,
        flagged=_found(FLAGGED, text) is not None,
        rented=rented[1] if rented else "",
        network_gbps=float(network[1]) if network else None,
        special=(float(special[1]) * 1e12, float(special[2])) if special else None,
        block_layers=int(block[1]) if block else None,
        machines=tuple((int(count), kind) for count, kind in re.findall(MACHINES, text)),
        boundaries=tuple(map(int, boundaries[1].split(","))) if boundaries else (),
    )


def phrases(text: str) -> str:
    """Return the phrases of notes that are kept, each once, in the order of `PHRASES`."""
    found: list[str] = []
    for pattern, words in PHRASES:
        found += [words or match[0].strip() for match in re.finditer(pattern, text, re.IGNORECASE)]
    return "; ".join(dict.fromkeys(found))


def _found(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.IGNORECASE)
