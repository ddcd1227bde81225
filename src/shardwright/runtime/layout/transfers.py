"""Who sends which part of an activation to whom between two stages, whose tensor-parallel degrees may differ."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.records import record


@record
class Transfer:
    """One message: from rank to rank, `part` [start, stop) of the sender's sequence positions, to be put at `into` of
    the receiver's."""

    source: int
    target: int
    part: tuple[int, int]
    into: tuple[int, int]


def transfers(sources: Sequence[int], targets: Sequence[int], seq_len: int, *, sharded: bool) -> tuple[Transfer, ...]:
    """Return the messages that carry an activation of `seq_len` positions from one stage to the next.

    Without sequence parallelism every rank of a stage has all positions, and each target takes them from the source at
    the same relative place. With it (`sharded`), rank r of t has the r-th of t equal parts of the positions.
    """
    if not sharded:
        whole = (0, seq_len)
        return tuple(
            Transfer(source=sources[index * len(sources) // len(targets)], target=target, part=whole, into=whole)
            for index, target in enumerate(targets)
        )
    sent, taken = seq_len // len(sources), seq_len // len(targets)
    found = []
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            start, stop = max(i * sent, j * taken), min((i + 1) * sent, (j + 1) * taken)
            if start < stop:
                part, into = (start - i * sent, stop - i * sent), (start - j * taken, stop - j * taken)
                found.append(Transfer(source=source, target=target, part=part, into=into))
    return tuple(found)
