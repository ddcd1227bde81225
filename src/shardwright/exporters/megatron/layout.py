"""Which layers each pipeline stage holds, in the words of Megatron-LM.

`--pipeline-model-parallel-layout` is a string such as `Et*9|t*7|t*10|t*6L`: E the embedding, t a layer, m a
multi-token-prediction layer, L the loss, `|` the end of a (virtual) stage, `x*n` and `(…)*n` repetition. Stage i of it
runs on pipeline rank i mod pp (Megatron-LM core_v0.19.2:
megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from shardwright.records import record

LONGEST_LAYOUT = 100_000
REPEATED_GROUP = re.compile(r"\(([^()]+)\)\*(\d{1,5})")
REPEATED_LETTER = re.compile(r"([EtmL|])\*(\d{1,5})")


@record
class EvenSplit:
    """What Megatron splits layers by where no layout string is given. `first` and `last` are layers of the first and
    last pipeline rank; `embedding` and `loss` say whether those count as a layer."""

    pipeline: int
    chunks: int
    first: int | None = None
    last: int | None = None
    embedding: bool = False
    loss: bool = False


def layout_text(layer_counts: Sequence[int], mtp_layers: int) -> str:
    """Return the layout string for the layers of each virtual stage, in order of execution."""
    stages = ["" if count == 0 else "t" if count == 1 else f"t*{count}" for count in layer_counts]
    stages[0] = "E" + stages[0]
    tail = "" if mtp_layers == 0 else "m" if mtp_layers == 1 else f"m*{mtp_layers}"
    stages[-1] += tail + "L"
    return "|".join(stages)


def layer_counts_of_layout(text: str) -> tuple[int, ...]:
    """Return the layers of each virtual stage that a layout string names. Raises ValueError, saying what is wrong."""
    flat = "".join(text.split()).replace(",", "")
    for pattern in (REPEATED_GROUP, REPEATED_LETTER):
        length = len(flat) + sum(len(body) * int(times) for body, times in pattern.findall(flat))
        if length > LONGEST_LAYOUT:
            raise ValueError("it repeats too often")
        flat = pattern.sub(lambda match: match[1] * int(match[2]), flat)
    stray = sorted(set(flat) - set("EtmL|"))
    if stray:
        raise ValueError(f"it contains {stray[0]!r}; known letters are E, t, m, L and |")
    letters = flat.replace("|", "")
    if letters.count("E") != 1 or not letters.startswith("E"):
        raise ValueError("it must begin with the only E")
    if letters.count("L") != 1 or not letters.endswith("L"):
        raise ValueError("it must end with the only L")
    if "mt" in letters:
        raise ValueError("it must have every t before the first m")
    return tuple(stage.count("t") for stage in flat.split("|"))


def layer_counts_of_split(layers: int, split: EvenSplit) -> tuple[int, ...]:
    """Return the layers of each virtual stage, in order of execution, as Megatron splits without a layout string.

    Raises ValueError, saying which division fails. Source: core_v0.19.2, megatron/training/arguments.py lines
    946-964 and megatron/core/transformer/transformer_config.py lines 1988-2109.
    """
    extra = int(split.embedding) + int(split.loss)
    ends = [end for end in (split.first, split.last) if end is not None]
    if ends and extra:
        raise ValueError("layers of the first or last stage and --account-for-… exclude each other")
    middle_ranks = split.pipeline - len(ends)
    middle = layers + extra - sum(ends)
    if middle < 0 or (middle > 0) != (middle_ranks > 0):
        raise ValueError(f"{middle} layers are left for {middle_ranks} pipeline ranks")
    if middle_ranks and middle % middle_ranks:
        raise ValueError(f"{middle} layers do not divide by {middle_ranks} pipeline ranks")
    ranks = [middle // middle_ranks] * middle_ranks if middle_ranks else []
    ranks = ([] if split.first is None else [split.first]) + ranks + ([] if split.last is None else [split.last])
    odd = [count for count in ranks if count % split.chunks]
    if odd:
        raise ValueError(f"{odd[0]} layers of a rank do not divide by {split.chunks} virtual stages")
    counts = [count // split.chunks for _ in range(split.chunks) for count in ranks]
    counts[0] -= int(split.embedding)
    counts[-1] -= int(split.loss)
    if min(counts) < 0:
        raise ValueError("there are more stages than layers")
    return tuple(counts)


def stage_ranges(layer_counts: Sequence[int], pipeline: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return, for each of `pipeline` ranks, the half-open layer ranges of its virtual stages."""
    ends = list(itertools.accumulate(layer_counts))
    ranges = [(end - count, end) for count, end in zip(layer_counts, ends, strict=True)]
    return tuple(tuple(ranges[rank::pipeline]) for rank in range(pipeline))


def layer_counts_of_ranges(stages: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, ...]:
    """Return the layers of each virtual stage in order of execution: the inverse of `stage_ranges`."""
    chunks = len(stages[0])
    return tuple(stage[chunk][1] - stage[chunk][0] for chunk in range(chunks) for stage in stages)
