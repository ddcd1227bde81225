"""Any order of work as a grid, built operation by operation, for tests of what runs grids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.cost.pipeline.schedule import BACKWARD, FORWARD, Operation, Order


def order_of_work(ranks: int, virtual_stages: int, micro_batches: int, work: Sequence[Sequence[Operation]]) -> Order:
    """Return the order in which rank i runs `work[i]`, each operation as soon as it can. It has to come to its end."""
    stages = ranks * virtual_stages
    rows: dict[Operation, int] = {}
    next_row, done = [0] * ranks, [0] * ranks
    while any(done[rank] < len(work[rank]) for rank in range(ranks)):
        for rank in range(ranks):
            while done[rank] < len(work[rank]):
                operation = Operation(*work[rank][done[rank]])
                needs = _predecessor(operation, stages)
                if needs is not None and needs not in rows:
                    break
                row = max(next_row[rank], 0 if needs is None else rows[needs] + 1)
                rows[operation], next_row[rank], done[rank] = row, row + 1, done[rank] + 1
    needed = {operation: before for operation in rows if (before := _predecessor(operation, stages)) is not None}
    depth = max((rows[operation] - rows[before] for operation, before in needed.items()), default=1)
    shape = max(rows.values()) + 1, ranks
    code, index, source = np.full(shape, 2 * stages), np.full(shape, -1), np.zeros(shape, dtype=np.intp)
    for operation, row in rows.items():
        rank = operation.virtual_stage % ranks
        code[row, rank], index[row, rank] = operation.kind * stages + operation.virtual_stage, operation.micro_batch
        if operation in needed:
            before = needed[operation]
            source[row, rank] = (depth - row + rows[before]) * ranks + before.virtual_stage % ranks
    return Order(
        ranks=ranks, virtual_stages=virtual_stages, micro_batches=micro_batches,
        code=code, micro_batch=index, source=source, depth=depth,
    )  # fmt: skip


def gpipe(ranks: int, micro_batches: int) -> Order:
    """Return GPipe: every rank runs all forwards, then all backwards (arXiv 1811.06965)."""
    kinds = (FORWARD, BACKWARD)
    work = [[Operation(kind, rank, m) for kind in kinds for m in range(micro_batches)] for rank in range(ranks)]
    return order_of_work(ranks, 1, micro_batches, work)


def _predecessor(operation: Operation, stages: int) -> Operation | None:
    """Return the operation whose message `operation` waits for; the last backward waits for its own forward."""
    kind, stage, micro_batch = operation
    if kind == FORWARD:
        return Operation(FORWARD, stage - 1, micro_batch) if stage else None
    return Operation(BACKWARD, stage + 1, micro_batch) if stage + 1 < stages else Operation(FORWARD, stage, micro_batch)
