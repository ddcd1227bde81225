"""Where the data-parallel groups of a pipeline's stages stand, against a walk over the ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.cost.samples import context, llama, pool, row

from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.iteration.step import stage_groups
from shardwright.cost.strategies import ZERO1, strategies
from shardwright.spec.read.job import make_job

DEGREES = st.integers(1, 12)


def on_machines(gpus: int) -> Context:
    """Return a small Llama on machines of so many GPUs."""
    return context(llama(16, 2048, 16, 16, 8192, 32000), pool(8, gpus), make_job(global_batch=48, seq_len=1024))


def fewest_in_a_domain(first: int, ranks: int, gpus: int, domain: int) -> int:
    """Count the groups of `gpus`, so many `ranks` in a row, that stand in the domain with fewest of them."""
    domains = [(first + place) * gpus // domain for place in range(ranks)]
    return min(domains.count(number) for number in set(domains))


@given(
    dp=DEGREES, cp=st.integers(1, 3), pp=st.integers(1, 5), tp=st.sampled_from((1, 2, 4)), gpus=st.sampled_from((4, 8))
)
def test_groups_stand_where_ranks_do(dp: int, cp: int, pp: int, tp: int, gpus: int) -> None:
    where = on_machines(gpus)
    groups = stage_groups(where, strategies([row(where, dp=dp, cp=cp, pp=pp, tp=tp)]), pp).dense
    walked = [fewest_in_a_domain(stage * dp * cp, dp * cp, tp, gpus) for stage in range(pp)]
    assert groups.local[0].tolist() == walked
    assert groups.size.ravel().tolist() == [dp * cp]


def test_copies_that_straddle_machines_reduce_over_the_network() -> None:
    """Three copies of four stages on machines of four GPUs: two stages have copies on two machines."""
    where = on_machines(4)
    three, four = (strategies([row(where, dp=dp, pp=4, sharding=ZERO1)]) for dp in (3, 4))
    assert stage_groups(where, three, 4).dense.local[0].tolist() == [3, 1, 1, 3]
    assert stage_groups(where, four, 4).dense.local[0].tolist() == [4, 4, 4, 4]
    seconds = [float(evaluate(where, rows).seconds[0]) for rows in (three, four)]
    assert seconds[0] > 1.02 * seconds[1] * (16 + 3) / (12 + 3), "beyond what as many more micro-batches take"
