"""The result of a rehearsal, and the same as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.rehearsal.account import Expected
from shardwright.runtime.layout.places import Place

VERSION = 1
STATIC = {"parameters": "weights_bytes", "gradients": "gradients_bytes", "state": "optimizer_bytes"}
PASSING = ("activations", "buffers", "temporaries")
PASSING_TERMS = ("activations_bytes", "logits_bytes", "buffers_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRehearsal:
    """What the step of one rank took (`figures`, as `inside.peaks` and the runner have them), and what was expected."""

    place: Place
    figures: Mapping[str, Any]
    expected: Expected

    @property
    def tensor_bytes(self) -> int:
        """The most bytes that tensors took at a time."""
        return int(self.figures["peak_bytes"])

    @property
    def total_bytes(self) -> float:
        """The same with what the account adds beside tensors: context, work space, rounding and fragmentation."""
        return self.tensor_bytes + self.expected.memory.context_bytes

    @property
    def difference(self) -> float:
        """Expected over rehearsed bytes of tensors, less 1."""
        return self.expected.tensor_bytes / self.tensor_bytes - 1.0

    @property
    def shim_share(self) -> float:
        """The part of the bytes at the peak that shims allocated."""
        return float(sum(shim["bytes"] for shim in self.figures["shims"].values()) / self.tensor_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A plan rehearsed in a trainer, rank by rank."""

    trainer: str
    ranks: tuple[RankRehearsal, ...]

    @property
    def fits(self) -> bool:
        """Whether every rank that was rehearsed stays within its GPU's memory."""
        return all(rank.total_bytes <= rank.expected.memory.capacity_bytes for rank in self.ranks)


def rows(rank: RankRehearsal) -> list[tuple[str, float, float]]:
    """Return what was rehearsed and expected, in bytes: what stays through the step kind by kind, then all that passes
    through it together, which the account divides otherwise, then all. Where a trainer's weights are the fp32 masters,
    these are state in the account, and so they are here."""
    kinds, memory = rank.figures["kinds"], rank.expected.memory
    static = dict(STATIC)
    sizes = {kind: float(kinds[kind]) for kind in static}
    passing = float(sum(kinds[kind] for kind in PASSING))
    terms: tuple[str, ...] = PASSING_TERMS
    if rank.figures.get("masters"):
        static.pop("parameters")
        sizes["state"] += sizes.pop("parameters")
        terms = ("weights_bytes", *terms)
    result = [(kind, sizes[kind], getattr(memory, term)) for kind, term in static.items()]
    result.append(("passing", passing, sum(getattr(memory, term) for term in terms)))
    return [*result, ("tensors", float(rank.tensor_bytes), rank.expected.tensor_bytes)]


def messages(rank: RankRehearsal) -> list[dict[str, Any]]:
    """Return the messages of a rank, with the bytes that were expected where the account has them."""
    known = rank.expected.message_bytes
    return [
        message | {"expected_bytes": known.get((message["type"], message["purpose"]))}
        for message in rank.figures["messages"]
    ]


def to_document(rehearsal: Rehearsal) -> dict[str, Any]:
    """Return a rehearsal as plain data."""
    return {
        "version": VERSION,
        "trainer": rehearsal.trainer,
        "fits": rehearsal.fits,
        "ranks": [_rank_document(rank) for rank in rehearsal.ranks],
    }


def _rank_document(rank: RankRehearsal) -> dict[str, Any]:
    figures, memory = rank.figures, rank.expected.memory
    return {
        "rank": rank.place.rank,
        "gpu": rank.place.gpu,
        "replica": rank.place.replica,
        "stage": rank.place.stage,
        "tensor_bytes": rank.tensor_bytes,
        "expected_tensor_bytes": rank.expected.tensor_bytes,
        "beside_tensors_bytes": memory.context_bytes,
        "total_bytes": rank.total_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "memory": [{"kind": kind, "bytes": size, "expected_bytes": other} for kind, size, other in rows(rank)],
        "kinds": dict(figures["kinds"]),
        "phases": figures["phases"],
        "course": figures["course"],
        "largest": figures["largest"],
        "rounding_bytes": figures["rounding_bytes"],
        "flops": figures["flops"],
        "expected_flops": rank.expected.flops,
        "flops_by_operator": figures["flops_by_operator"],
        "messages": messages(rank),
        "shims": [{"name": name, **shim} for name, shim in figures["shims"].items()],
        "shim_share": rank.shim_share,
        "choices": figures["choices"],
        "layer": figures["layer"],
        "operators": figures["operators"],
        "guessed_numbers": figures["guessed_numbers"],
        "seconds": figures["seconds"],
        "host_bytes": figures["host_bytes"],
    }
