"""Every public call, with any value of any argument: a result, or what is wrong by the argument's name."""

from __future__ import annotations

import inspect
import pickle
import typing
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright.calls import fits
from shardwright.cost.learned import default_efficiency
from shardwright.spec.offers import Offers
from shardwright.spec.read.offers import offers_from_prices

NOT_CALLED = {
    "profile": "occupies the GPUs of the machine",
    "measured_layers": "needs a file of measurements, as tests of layer profiles have it",
    "good_state": "needs a run, as tests of runs have it",
    "plan": "tests/test_library.py",
}
FUNCTIONS = [name for name in shardwright.__all__ if inspect.isfunction(getattr(shardwright, name))]
ODD: tuple[Any, ...] = (None, 3, -1, 0.0, float("nan"), "x", "", [], [3], ["x"], {"tp": 8}, object(), True, b"x")


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    model, cluster = shardwright.load_model("llama-3.2-1b"), shardwright.load_cluster("1x1xA100-SXM-80")
    job = shardwright.make_job(global_batch=8, seq_len=1024, tokens="1B")
    ranking = shardwright.plan(model, cluster, job, top=1)
    ran = shardwright.Measured(plan=ranking.best, seconds=1.1 * ranking.best.iteration_seconds, name="run")
    return {
        "model": model,
        "cluster": cluster,
        "job": job,
        "ranking": ranking,
        "plan": ranking.best,
        "ran": ran,
        "pin": {"tp": 8},
        "words": {"recompute": ("none",)},
        "evaluation": shardwright.evaluate(ranking.best),
        "site": shardwright.calibrate([ran]),
        "offers": Offers(offers=offers_from_prices(_prices(), gpus=["A100-SXM-80"], most_gpus=8).offers[:1]),
    }


def _prices() -> Any:
    from shardwright.spec.catalog.prices import table_prices

    return table_prices(gpu="A100-SXM-80", provider="aws")


def usual(objects: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Return arguments with which each call answers, or says that a file is missing."""
    plan, cluster, missing = objects["plan"], objects["cluster"], folder / "missing"
    question = {name: objects[name] for name in ("model", "cluster", "job")}
    return {
        "calibrate": {"runs": [objects["ran"]]},
        "calibrated": {"base": default_efficiency(), "site": objects["site"]},
        "check": {"plan": plan},
        "diagnose": {"plan": plan, "step_seconds": 2.0, "best": False},
        "discover": {"source": "slurm", "ask": lambda words: None},
        "draw": {"plan": plan},
        "evaluate": {"user_plan": plan},
        "export": {"plan": plan, "to": "megatron"},
        "fit": question,
        "load_calibration": {"path": missing},
        "load_cluster": {"source": "1x1xT4"},
        "load_layer_profile": {"path": missing},
        "load_model": {"source": "llama-3.2-1b"},
        "load_offers": {"source": missing},
        "load_plan": {"source": missing},
        "load_profile": {"path": missing},
        "make_job": {"global_batch": 8, "seq_len": 1024},
        "nearest_plan": {"plan": plan, "to": "deepspeed"},
        "predict": {"plan": plan},
        "profiled": {"base": default_efficiency(), "profiles": [], "cluster": cluster},
        "read_run": {"path": missing},
        "replan": {"previous": plan, "cluster": cluster},
        "report": {"subject": plan},
        "save": {"plan": plan, "path": folder / "plan.json"},
        "shop": {"model": objects["model"], "offers": objects["offers"], "job": objects["job"]},
        "support": {"model": objects["model"]},
        "to_megatron": {"plan": plan},
        "validate": {"rows": ["no-such-row"]},
    }


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NOT_CALLED])
def test_any_value_of_any_argument_is_answered_or_refused_by_name(
    name: str, objects: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function, given = getattr(shardwright, name), usual(objects, tmp_path)[name]
    kinds = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    for item in (item for item in parameters if item.kind is not item.VAR_KEYWORD):
        for value in (*ODD, *objects.values()):
            skips = value is None and item.default not in (None, item.empty)
            wrong = not skips and not fits(value, kinds[item.name])
            if not wrong and name in ("validate", "discover") and value in (None, [], ""):
                continue  # all published runs; this machine
            try:
                function(**{**given, item.name: value})
            except shardwright.SpecError as error:
                assert all(problem.path and problem.message for problem in error.problems), (item.name, value)
                assert not wrong or error.problems[0].path == f"`{item.name}=`"
                assert not wrong or error.problems[0].hint
            else:
                assert not wrong, f"{value!r:.80} is no {kinds[item.name]}"


@pytest.mark.parametrize(
    ("call", "argument", "words"),
    [
        (lambda has: shardwright.evaluate(has["ranking"]), "user_plan", "a Ranking has one as `.best`"),
        (lambda has: shardwright.draw(has["evaluation"]), "plan", "`.plan`"),
        (lambda has: shardwright.fit("llama-3.2-1b", has["cluster"], has["job"]), "model", "load_model"),
        (lambda has: shardwright.shop(has["model"], has["offers"], has["job"], mixes="2"), "mixes", "says what"),
        (lambda has: shardwright.shop(has["model"], has["offers"], has["job"], rules=8), "rules", "text"),
        (lambda has: shardwright.plan(has["model"], has["cluster"], has["job"], top=2.5), "top", "says what"),
        (lambda has: shardwright.calibrate([has["plan"]]), "runs", "shardwright.Measured("),
        (lambda has: shardwright.Space(pins={"tpx": (8,)}), "pins", "tp"),
        (lambda has: shardwright.Space(pins=has["pin"]), "pins", "plan(pins="),
        (lambda has: shardwright.Space(pins=has["words"]), "pins", "plan(pins="),
    ],
)
def test_a_wrong_object_is_told_what_makes_the_right_kind(
    call: Any, argument: str, words: str, objects: dict[str, Any]
) -> None:
    with pytest.raises(shardwright.SpecError) as refused:
        call(objects)
    (problem,) = refused.value.problems
    assert problem.path == f"`{argument}=`" and words in problem.hint


def test_rules_are_text_wherever_there_are_rules(objects: dict[str, Any]) -> None:
    told = [shardwright.evaluate(objects["plan"], rules=rules) for rules in ("$tp > 8", ["$tp > 8"])]
    assert told[0].best.plans == told[1].best.plans
    front = [shardwright.shop(*(objects[name] for name in ("model", "offers", "job")), rules=rules).front
             for rules in ("$dp > 8", ["$dp > 8"])]  # fmt: skip
    assert front[0] == front[1]
    with pytest.raises(shardwright.SpecError, match="nothing"):
        shardwright.evaluate(objects["plan"], rules="$nothing > 1")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_call_can_be_sent_to_another_process(name: str) -> None:
    assert pickle.loads(pickle.dumps(getattr(shardwright, name))) is getattr(shardwright, name)


def test_a_call_without_an_argument_it_needs_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required"):
        shardwright.load_model()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'frameworx'"):
        shardwright.plan("gpt2", "1x1xT4", shardwright.make_job(global_batch=8, seq_len=512), frameworx="fsdp")
