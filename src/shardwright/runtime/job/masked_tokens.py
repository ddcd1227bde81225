"""Masked tokens, for models that see all of a sequence: which of a sample are hidden, and as what (BERT, arXiv
1810.04805 §3.1). They depend on the seed and the number of the sample alone, so that every plan trains alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHARE = 0.15  # of a sample's tokens; of these 8 in 10 become the mask, 1 in 10 any token, and 1 in 10 stays
MASKED, RANDOM = 0.8, 0.9
NO_TARGET = -1


def hidden_tokens(
    rows: NDArray[np.int64], first: int, seed: int, mask: int, vocab: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what a model sees of samples [count, length] that begin with the `first`, and what it is to find there,
    `NO_TARGET` at tokens that are not hidden. As many are hidden in every sample."""
    seen, targets = rows.copy(), np.full_like(rows, NO_TARGET)
    count = max(round(SHARE * rows.shape[1]), 1)
    for row, (tokens, wanted) in enumerate(zip(seen, targets, strict=True)):
        generator = np.random.default_rng((seed, first + row))
        places = generator.permutation(rows.shape[1])[:count]
        wanted[places] = tokens[places]
        lot, others = generator.random(count), generator.integers(vocab, size=count)
        tokens[places] = np.where(lot < MASKED, mask, np.where(lot < RANDOM, others, tokens[places]))
    return seen, targets
