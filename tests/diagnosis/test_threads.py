"""Public threads that ask why a run is slow: what the diagnosis says of the facts given there, beside the answer given.

`threads.csv` has the facts as far as a thread tells them, the address, and its answer. Where a thread has no step time,
the plan alone is looked at; `x8` is so many times what is expected (8 times slower, says the thread; that of
Megatron-DeepSpeed 357 names no figure, three times is assumed). In the cluster, `@tcp` stands for 10 Gb/s Ethernet.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright import load_cluster, load_model, make_job
from shardwright.cost.learned import default_efficiency
from shardwright.cost.strategies import plan_of_row, settled, strategies
from shardwright.diagnosis.case import Case, costed
from shardwright.diagnosis.diagnose import Diagnosis, diagnosed

UNTOLD = "untold"
with (Path(__file__).parent / "threads.csv").open(newline="", encoding="utf-8") as file:
    THREADS = {row["thread"]: row for row in csv.DictReader(file)}


def diagnosis_of(facts: dict[str, str]) -> Diagnosis:
    name, _, network = facts["cluster"].partition("@")
    cluster, model = load_cluster(name), load_model(facts["model"])
    if network == "tcp":
        pools = (replace(p, inter_bytes_per_second=1.25e9, inter_latency_seconds=50e-6) for p in cluster.pools)
        cluster = replace(cluster, pools=tuple(pools))
    values = {key: int(value) for key, value in (word.split("=") for word in facts["row"].split())}
    rank = values.pop("lora", 0)
    job = make_job(
        global_batch=int(facts["global_batch"]), seq_len=int(facts["seq_len"]), framework=facts["framework"],
        precision=facts["precision"], adapter=f"lora:{rank}" if rank else None,
    )  # fmt: skip
    layers = len(model.layers)
    ends = (layers // values["pp"],) * 2 if values["pp"] > 1 else (layers, 0)
    row = settled(values | {"first_layers": ends[0], "last_layers": ends[1]})
    plan = plan_of_row(strategies([row]), model, job, cluster, cluster.pools[0].gpu.name)
    plan = costed(plan, default_efficiency())
    step = facts["step_seconds"]
    times = plan.iteration_seconds if step.startswith("x") else 1.0
    return diagnosed(
        Case(plan=plan, efficiency=default_efficiency(), step_seconds=float(step.lstrip("x")) * times if step else None)
    )


@pytest.mark.parametrize("name", THREADS)
def test_the_answer_of_the_thread_comes_first_of_its_kind(name: str) -> None:
    """First among what the plan costs, or first among what is possible where only a step time is known."""
    facts = THREADS[name]
    result = diagnosis_of(facts)
    if facts["cause"] == UNTOLD:
        assert result.untold and "trace" in result.records
        assert [finding for finding in result.findings if finding.basis == "measured"] == []
        return
    (finding,) = [finding for finding in result.findings if finding.cause == facts["cause"]]
    alike = [other for other in result.findings if other.basis == finding.basis]
    assert alike[0] is finding
    assert finding.seconds > 0.0 and finding.evidence
