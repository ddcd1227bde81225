"""Plan files: exact round trips, deterministic text, and every fault of a bad file named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.golden.plans import PLANS
from tests.nightly import examples
from tests.plans.random_plans import layered_plans, mixed_plans

from shardwright import Plan, SpecError, check
from shardwright.errors import reject
from shardwright.plans.document import dumps, from_document, load_plan, save, to_document
from shardwright.spec.adapter import Adapter
from shardwright.spec.options import VALUES, Options
from shardwright.spec.preference import Preference

FEW = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
INTERLEAVED = PLANS["llama-2-70b-interleaved"]


@FEW
@given(mixed_plans())
def test_a_plan_survives_its_file(plan: Plan) -> None:
    text = dumps(plan)
    again = from_document(json.loads(text))
    assert again == plan
    assert dumps(again) == text


@FEW
@given(layered_plans())
def test_shares_survive_the_file(plan: Plan) -> None:
    text = dumps(plan)
    assert from_document(json.loads(text)) == plan
    replica = json.loads(text)["replicas"][0]
    assert (replica["rows"], replica["state"]) == (plan.replicas[0].rows, plan.replicas[0].state)


@FEW
@given(mixed_plans())
def test_plans_of_version_1_still_load(plan: Plan) -> None:
    document = json.loads(dumps(plan))
    assert not {"rows", "state"} & set(document["replicas"][0]) and "parts" not in document["optimizer"]
    assert from_document(document | {"version": 1}) == plan


@FEW
@given(mixed_plans().filter(lambda plan: plan.prediction is not None))
def test_files_whose_bound_may_be_that_of_flops_still_load(plan: Plan) -> None:
    """`lower_bound_seconds` of files without `ideal_seconds` is a bound, too, if not a search's."""
    document = json.loads(dumps(plan))
    document["prediction"].pop("ideal_seconds", None)
    assert plan.prediction is not None
    assert from_document(document).prediction == replace(plan.prediction, ideal_seconds=None)


@pytest.mark.parametrize("name", PLANS)
def test_a_file_on_disk_gives_the_plan_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(PLANS[name], path)
    assert load_plan(path) == load_plan(str(path)) == PLANS[name]


def test_the_promised_shape() -> None:
    document = to_document(INTERLEAVED)
    assert list(document)[:8] == [
        "version",
        "model",
        "job",
        "cluster",
        "micro_batch",
        "schedule",
        "replicas",
        "optimizer",
    ]
    assert document["version"] == 2
    assert document["job"]["global_batch"] == 512 and document["job"]["seq_len"] == 4096
    assert document["schedule"] == {"kind": "interleaved", "virtual_stages": 2}
    assert document["optimizer"]["distributed"] is True and document["optimizer"]["offload"] == 0.0
    (replica,) = document["replicas"]
    assert (replica["count"], replica["micro_batches"], len(replica["stages"])) == (8, 64, 4)
    assert replica["stages"][1] == {
        "gpu": "H100-SXM",
        "tensor_parallel": 8,
        "context_parallel": 1,
        "expert_parallel": 1,
        "expert_tensor_parallel": 1,
        "layers": [[9, 19], [49, 59]],
        "recompute": {"granularity": "selective"},
    }
    assert to_document(PLANS["gpt-3-175b"])["replicas"][0]["stages"][1]["layers"] == [12, 24]
    assert [run["count"] for run in to_document(PLANS["deepseek-v3"])["model"]["layers"]] == [3, 58]


def changed(path: list[Any], value: Any, plan: Plan = INTERLEAVED) -> Any:
    """The document of a plan with one value changed; `...` removes it."""
    document = json.loads(dumps(plan))
    target = document
    for key in path[:-1]:
        target = target[key]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return document


STAGE = ["replicas", 0, "stages", 1]


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (["version"], 3, "plan: version"),
        (["version"], True, "plan: version"),
        (["version"], ..., "plan: version"),
        (["micro_batch"], "1", "plan: micro_batch"),
        (["micro_batch"], 1.5, "plan: micro_batch"),
        (["micro_batch"], -1, "plan: micro_batch"),
        (["micro_batch"], True, "plan: micro_batch"),
        (["replicas"], {}, "plan: replicas"),
        (["replicas", 0], 7, "plan: replicas[0]"),
        (["replicas", 0, "count"], ..., "plan: replicas[0].count"),
        ([*STAGE, "layers"], [0, "x"], "plan: replicas[0].stages[1].layers[0][1]"),
        ([*STAGE, "layers"], [[0, 1, 2]], "plan: replicas[0].stages[1].layers[0]"),
        ([*STAGE, "tensor_paralel"], 4, "plan: replicas[0].stages[1].tensor_paralel"),
        ([*STAGE, "recompute", "granularity"], "sel", "plan: replicas[0].stages[1].recompute.granularity"),
        (["model", "layers"], 80, "plan: model.layers"),
        (["model", "layers", 0, "count"], 10**9, "plan: model.layers[0].count"),
        (["model", "layers", 0], {"attention": None, "mlp": None, "moe": None}, "plan: model.layers[0]"),
        (["model", "layers", 0, "attention", "heads"], None, "plan: model.layers[0].attention.heads"),
        (["cluster", "pools", 0, "gpu", "memory_bytes"], float("nan"), "plan: cluster.pools[0].gpu.memory_bytes"),
        (
            ["cluster", "pools", 0, "gpu", "peak_flops", 0, 1],
            float("inf"),
            "plan: cluster.pools[0].gpu.peak_flops[0][1]",
        ),
        (["job", "objective"], "money", "plan: job.objective"),
        (["optimizer", "distributed"], False, "plan: optimizer.distributed"),
        (["optimizer", "offload"], -0.5, "plan: optimizer.offload"),
        (["overlap"], ..., "plan: overlap"),
        (["prediction"], 1, "plan: prediction"),
    ],
)
def test_each_fault_is_named_with_a_remedy(path: list[Any], value: Any, place: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_document(changed(path, value))
    assert place in [problem.path for problem in caught.value.problems]
    assert all(problem.message and problem.hint for problem in caught.value.problems)


def test_all_faults_are_named_at_once() -> None:
    document = changed(["micro_batch"], 0.5)
    document["label"] = 3
    document["replicas"][0]["stages"][2]["gpu"] = None
    document["surprise"] = 1
    with pytest.raises(SpecError) as caught:
        from_document(document, "p.json")
    assert [problem.path for problem in caught.value.problems] == [
        "p.json: replicas[0].stages[2].gpu",
        "p.json: surprise",
        "p.json: micro_batch",
        "p.json: label",
    ]


def test_near_names_are_suggested() -> None:
    with pytest.raises(SpecError, match=r"did you mean tensor_parallel"):
        from_document(changed([*STAGE, "tensor_paralel"], 4))


def test_the_promised_keys_of_the_optimizer_are_enough() -> None:
    for distributed, sharding in ((True, "zero1"), (False, "none")):
        document = changed(["optimizer"], {"distributed": distributed, "offload": 0.0})
        assert from_document(document).optimizer.sharding == sharding


@FEW
@given(mixed_plans().filter(lambda plan: plan.prediction is not None and any(plan.prediction.memory)))
def test_memory_totals_must_agree_with_the_terms(plan: Plan) -> None:
    document = json.loads(dumps(plan))
    row = next(row for row in document["prediction"]["memory_bytes"] if row)
    row[0] = row[0] * 2 + 1
    with pytest.raises(SpecError, match="memory_bytes"):
        from_document(document)
    del document["prediction"]["memory_bytes"]
    assert from_document(document) == plan


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_any_other_document_is_a_clear_error(document: Any) -> None:
    with pytest.raises(SpecError):
        from_document(document)
    with pytest.raises(SpecError):
        from_document(
            {"version": 1, "model": document, "replicas": document, "optimizer": document, "prediction": document}
        )


@pytest.mark.parametrize("length", [0, 1, 500, -2])
def test_a_cut_off_file_is_a_clear_error(length: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(dumps(INTERLEAVED)[:length], encoding="utf-8")
    with pytest.raises(SpecError, match=r"plan\.json"):
        load_plan(path)
    with pytest.raises(SpecError, match="no such file"):
        load_plan(tmp_path / "none.json")


def job_with_all() -> Plan:
    """Return a plan whose job says what it may leave out: an option of each kind, adapters, a loss over preferences."""
    job = replace(
        INTERLEAVED.job,
        framework="fsdp",
        fp8_recipe="delayed",
        adapter=Adapter(),
        preference=Preference(loss="dpo"),
        freeze=("vision",),
        options=Options(**{name: words[0] for name, words in VALUES.items() if words and name != "recompute_modules"}),
    )
    return replace(INTERLEAVED, job=job)


def words_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of the words in a document."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from words_of(inner, (*path, key))


@pytest.mark.parametrize(
    "path", list(words_of(to_document(job_with_all())["job"])), ids=lambda path: ".".join(map(str, path))
)
def test_a_word_of_a_job_that_nobody_knows_is_a_fault_and_no_traceback(path: tuple[Any, ...]) -> None:
    document = json.loads(dumps(job_with_all()))
    place = document["job"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = "strange"
    name = ".".join(key for key in path if isinstance(key, str))
    with pytest.raises(SpecError, match=rf"job\.{re.escape(name)}\b.*strange"):
        reject(check(from_document(document)))


def test_no_reference_is_computed_before_a_loss_without_one() -> None:
    lone = replace(INTERLEAVED.job, framework="fsdp", preference=Preference(loss="orpo", precomputed=True))
    assert "job.preference.precomputed" in {problem.path for problem in check(replace(INTERLEAVED, job=lone))}
