"""`LayerProfile`: a user's own measurements of a model's layers and links.

It is another thing than a machine profile, which has operators of no model in particular. Its file is JSON, version 1
(`load_layer_profile` reads it); lists have a figure for each position of the model, embedding first and head last:

    {"version": 1, "model": "…", "seq_len": 2048, "precision": "fp32",
     "entries": [{"gpu": "A100-SXM-40", "tensor_parallel": 2, "micro_batch": 4,
                  "forward_seconds": [embedding, layer 1, …, head], "backward_seconds": […], "optimizer_seconds": […],
                  "weight_bytes": […], "activation_bytes": […], "output_bytes": […]}],
     "links": [{"from": "A100-SXM-40", "to": "V100-SXM2", "scope": "inter_node", "bytes": […], "seconds": […]},
               {"from": "V100-SXM2", "to": "V100-SXM2", "scope": "intra_node", "ranks": 4, "bytes": […], …}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from shardwright.records import record

Scope = Literal["intra_node", "inter_node"]
TIMES = ("forward_seconds", "backward_seconds")
EXTRAS = ("optimizer_seconds", "weight_bytes", "activation_bytes", "output_bytes")
NOISE = 0.03  # of a measured time
Column = tuple[float, ...]


@record
class LayerTimes:
    """One GPU type, tensor-parallel degree and micro-batch size: figures of every position on one GPU.

    Seconds are of one micro-batch, with the communication of tensor parallelism; `optimizer_seconds` of an update of
    all parameters that the GPU holds. `weight_bytes` are the weights alone, `activation_bytes` what is kept for the
    backward pass without recomputation, `output_bytes` the whole activation that goes to the next position. Columns
    that were not measured are empty.
    """

    gpu: str
    tensor_parallel: int
    micro_batch: int
    forward_seconds: Column
    backward_seconds: Column
    optimizer_seconds: Column = ()
    weight_bytes: Column = ()
    activation_bytes: Column = ()
    output_bytes: Column = ()


@record
class LinkCurve:
    """Seconds of one message of each size from a GPU of type `source` to one of type `target`, in one machine (with
    `ranks` GPUs of it talking) or between machines."""

    source: str
    target: str
    scope: Scope
    bytes: Column
    seconds: Column
    ranks: int | None = None


@record(slots=False)
class LayerProfile:
    """Measured times of one model, all entries with the same positions. `sequence_parallel` says how entries with
    tensor parallelism ran; `precision` is "" where the file does not say."""

    model: str
    seq_len: int
    precision: str
    entries: tuple[LayerTimes, ...]
    links: tuple[LinkCurve, ...] = ()
    sequence_parallel: bool = False

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """The GPU types with entries, in the order of the file."""
        return tuple(dict.fromkeys(entry.gpu for entry in self.entries))

    @property
    def layers(self) -> int:
        return len(self.entries[0].forward_seconds) - 2

    @cached_property
    def by_setting(self) -> Mapping[tuple[str, int, int], LayerTimes]:
        """The entries by GPU type, tensor-parallel degree and micro-batch size."""
        return {(entry.gpu, entry.tensor_parallel, entry.micro_batch): entry for entry in self.entries}

    def of(self, gpu: str) -> tuple[LayerTimes, ...]:
        """Return the entries of a GPU type."""
        return tuple(entry for entry in self.entries if entry.gpu == gpu)


def smoothed(profile: LayerProfile, kind_of_layer: Sequence[int]) -> LayerProfile:
    """Return the profile with one figure for layers of a kind that differ by no more than `NOISE`: their mean."""

    def smooth(column: Column) -> Column:
        smoothed = list(column)
        for kind in set(kind_of_layer) if column else ():
            places = [place for place, layer_kind in enumerate(kind_of_layer, start=1) if layer_kind == kind]
            values = [column[place] for place in places]
            if max(values) <= (1.0 + NOISE) * min(values):
                for place in places:
                    smoothed[place] = sum(values) / len(values)
        return tuple(smoothed)

    entries = []
    for entry in profile.entries:
        columns: dict[str, Any] = {key: smooth(getattr(entry, key)) for key in (*TIMES, *EXTRAS)}
        entries.append(replace(entry, **columns))
    return replace(profile, entries=tuple(entries))
