"""What unequal degrees among the holders of a layer cost in memory.

Holders of unequal degrees cut a layer into shards, as many as the least common multiple of their degrees, and each
shard has flat buffers of its own. A rank with several shards of a layer keeps its weights there, and beside them whole,
as its passes use them, with the gradients to which these add (`runtime.state.store`). Optimizer state is there once. A
stage that shares some of its layers so counts with all of them.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.iteration.places import Places


def copied_parameters(places: Places, dense: Floats, expert: Floats) -> Floats:
    """Return the parameters that a GPU of each stage keeps twice, [S], of `dense` and `expert` ones [S]."""
    blocks = _several(places, places.etp) | _several(places, places.ep)
    return np.asarray(_several(places, places.tp) * dense + blocks * expert)


def _several(places: Places, degree: Ints) -> Bools:
    """Return whether a rank of each stage has more than one shard, [S], where stages are cut into `degree` parts."""
    return np.asarray(np.lcm.reduce(np.where(places.shared, degree, 1), axis=1) > degree)
