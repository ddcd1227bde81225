"""How many tokens of a token file are padding: a token that fills samples up to their end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwright.arrays import Ints
from shardwright.errors import bad

MOST_SAMPLES = 4_096  # that are looked at, evenly spread
LONGEST_RUN = 2  # of one token at the end of a sample, which a text may have


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """The share of tokens that are padding, the token that pads, and how many samples say so."""

    share: float
    token: int | None
    samples: int
    source: str


def padding_of(path: Path, seq_len: int) -> Padding:
    """Return what share of the samples of `seq_len` tokens of a token file (`NAME.bin`, with `NAME.json` beside it) is
    padding. Raises SpecError for a file that is none, or has less than a sample."""
    about = path.with_suffix(".json")
    try:
        dtype = {"uint16": "<u2", "uint32": "<u4"}[str(json.loads(about.read_text(encoding="utf-8"))["dtype"])]
    except (OSError, ValueError, KeyError, TypeError):
        message = "does not say what the tokens are"
        raise bad(str(about), message, "name a file that `tokens` wrote, with its .json beside it") from None
    tokens = np.memmap(path, dtype=dtype, mode="r") if path.is_file() and path.stat().st_size else np.zeros(0)
    count = len(tokens) // seq_len
    if not count:
        raise bad(str(path), f"has less than a sample of {seq_len} tokens", "name the file that the run trains on")
    chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_SAMPLES)).astype(np.int64))
    samples = np.stack([tokens[place * seq_len : (place + 1) * seq_len] for place in chosen]).astype(np.int64)
    runs = _runs_at_end(samples)
    padded = runs > LONGEST_RUN
    last = samples[padded, -1]
    if not len(last):
        return Padding(share=0.0, token=None, samples=len(chosen), source=str(path))
    token = int(np.bincount(last).argmax())
    ours = samples[:, -1] == token
    share = float(runs[ours].sum() / samples.size) if (last == token).mean() > 0.5 else 0.0
    return Padding(share=share, token=token, samples=len(chosen), source=str(path))


def _runs_at_end(samples: Ints) -> Ints:
    """Return how many times each sample repeats its last token at the end, [samples]."""
    differs = samples[:, ::-1] != samples[:, -1:]
    return np.asarray(np.where(differs.any(axis=1), differs.argmax(axis=1), samples.shape[1]))
