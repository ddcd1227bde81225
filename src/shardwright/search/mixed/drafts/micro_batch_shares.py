"""How many micro-batches each replica gets, so that the slowest is as fast as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

TimeOf = Callable[[int, int], float]  # replica kind, micro-batches -> seconds


def shares(copies: Sequence[int], first: Sequence[int], total: int, seconds: TimeOf) -> list[tuple[int, int, int]]:
    """Return (kind, count, micro_batches) for `copies` replicas of each kind that take `total` together.

    Starts from `first` micro-batches each, gives to the replica that would end first and takes from the one that ends
    last. A kind falls in two groups where its replicas differ by one.
    """
    counts: dict[tuple[int, int], int] = {}
    for kind, (count, size) in enumerate(zip(copies, first, strict=True)):
        counts[(kind, size)] = counts.get((kind, size), 0) + count
    given = sum(count * size for (_, size), count in counts.items())
    while given < total:
        kind, size = min(counts, key=lambda key: (seconds(key[0], key[1] + 1), key))
        step = min(counts[(kind, size)], total - given)
        _move(counts, (kind, size), (kind, size + 1), step)
        given += step
    while given > total:
        kind, size = max(counts, key=lambda key: (key[1] > 1, seconds(*key), key))
        step = min(counts[(kind, size)], given - total)
        _move(counts, (kind, size), (kind, size - 1), step)
        given -= step
    for _ in range(4 * len(counts) + sum(copies)):
        last = max((key for key in counts if key[1] > 1), key=lambda key: (seconds(*key), key), default=None)
        if last is None:
            break
        others = [key for key in counts if key != last or counts[key] > 1]
        if not others:
            break
        target = min(others, key=lambda key: (seconds(key[0], key[1] + 1), key))
        if seconds(target[0], target[1] + 1) >= seconds(*last) * (1.0 - 1e-12):
            break
        step = 1 if target == last else min(counts[last], counts[target])
        _move(counts, last, (last[0], last[1] - 1), step)
        _move(counts, target, (target[0], target[1] + 1), step)
    return [
        (kind, count, size)
        for (kind, size), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[0][1]))
    ]


def _move(counts: dict[tuple[int, int], int], here: tuple[int, int], there: tuple[int, int], number: int) -> None:
    counts[here] -= number
    if not counts[here]:
        del counts[here]
    counts[there] = counts.get(there, 0) + number
