"""A framework is one row of a table: a new one needs no other file."""

from __future__ import annotations

import csv
import io

import pytest

from shardwright import Job, load_cluster, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.frameworks.overheads import shipped
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.memory.facts import shipped_facts
from shardwright.cost.strategies import settled, strategies
from shardwright.cost.trust.interval import ANY, interval_of
from shardwright.files import shipped_file
from shardwright.spec.catalog import frameworks
from shardwright.validation.facts import habits_of

CACHES = (frameworks.framework_rows, shipped, shipped_facts, habits_of, widths_of)


@pytest.fixture
def with_a_new_row(monkeypatch):
    """The table of frameworks with a copy of FSDP's row under another name, which interval and habits read too."""
    rows = list(csv.DictReader(io.StringIO(shipped_file("shardwright.spec.catalog", "frameworks.csv").decode())))
    new = next(row for row in rows if row["framework"] == "fsdp") | {"framework": "newcomer", "logit": "10"}

    def clear() -> None:
        from shardwright.cost.trust import interval

        for cache in (*CACHES, interval._factors):
            cache.cache_clear()

    clear()
    monkeypatch.setattr(frameworks, "shipped_table", lambda package, name: (*rows, new))
    yield
    monkeypatch.undo()
    clear()


@pytest.mark.usefixtures("with_a_new_row")
@pytest.mark.parametrize("degrees", [{"dp": 1}, {"tp": 2, "dp": 1}, {"dp": 2, "sharding": 2}, {"dp": 2, "sharding": 3}])
def test_a_new_row_takes_the_seconds_of_the_row_it_copies(degrees: dict[str, int]) -> None:
    """In fp32, as bytes on links are rows of another table."""
    model, pool = load_model("llama-3.2-1b"), load_cluster("1x2xH100-SXM").pools[0]
    seconds = []
    for framework in ("fsdp", "newcomer"):
        job = make_job(global_batch=8, seq_len=1024, framework=framework, precision="fp32")
        context = Context(model=model, pool=pool, job=job, efficiency=Analytic())
        row = strategies([settled({"flash": False, "sequence_parallel": "tp" in degrees, **degrees})])
        seconds.append(evaluate(context, row).seconds[0])
    assert seconds[0] == seconds[1]


@pytest.mark.usefixtures("with_a_new_row")
def test_one_row_makes_a_framework():
    assert make_job(global_batch=8, seq_len=1024, framework="newcomer").framework == "newcomer"
    assert shipped().frameworks["newcomer"] == shipped().frameworks["fsdp"]
    assert shipped_facts()["newcomer"].logit == 10.0
    assert interval_of(1.0, "newcomer", {ANY: 1.0}) == interval_of(1.0, "fsdp", {ANY: 1.0})
    assert habits_of("newcomer") == habits_of("fsdp").__class__(
        **{name: getattr(habits_of("fsdp"), name) for name in habits_of("fsdp").__dataclass_fields__}
        | {"framework": "newcomer"}
    )
    assert widths_of(Job(global_batch=8, seq_len=1024, framework="newcomer")).pipeline == 2.0


def test_every_row_says_where_it_is_from():
    for row in frameworks.framework_rows().values():
        assert row["source"] and row["date"]
