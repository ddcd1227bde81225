"""Fuzz below the syntax: well-formed plans, launch scripts and pins with wrong values. Never a traceback. Some of each, and
the same ones in every run; test_fuzz_commands has ten thousand at night."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.running import refused, run
from tests.nightly import examples

FUZZ = settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
CLUSTER = "1x2xA100-SXM-80"
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 128, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [0, 1, 2, 3, 4, 5, 7, 8, 64, 1000, -1, 2**40, 10**30, 0.5, -0.5, 1e300, float("nan"), float("inf")]
    ),
    st.sampled_from([None, True, False, "", "tp", "full", "zero3", "interleaved", "H100-SXM", [], {}, [0], [[0, 4]]]),
)


def assert_sane(arguments: list[str]) -> int:
    outcome = run(arguments)
    assert outcome.code in (0, 2, 3), outcome
    assert "Traceback" not in outcome.err
    if outcome.code == 2 and not (arguments[0] == "evaluate" and outcome.out):
        refused(outcome)  # an illegal plan is evaluated all the same, and ends with exit 2
    return outcome.code


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan of a tiny model, and its export."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    plan, script = folder / "plan.json", folder / "run.sh"
    arguments = ["plan", "--model", str(folder), "--cluster", CLUSTER, "--global-batch", "8", "--seq-len", "128"]
    assert run([*arguments, "--set", "pp=2", "--out", str(plan)]).code == 0
    assert run(["export", str(plan), "--to", "megatron", "--out", str(script)]).code == 0
    return folder


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a document, but not to the cluster's, which make the search long."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        if key == "cluster":
            continue
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


@pytest.mark.parametrize("command", ["check", "evaluate", "export"])
@FUZZ
@given(data=st.data())
def test_any_value_in_a_plan(command: str, tiny: Path, tmp_path: Path, data: st.DataObject) -> None:
    document = json.loads((tiny / "plan.json").read_text())
    shapes = [path for path in places(document) if path[0] not in ("prediction", "model")]
    ways = data.draw(st.sampled_from([shapes, list(places(document))]))
    for path in data.draw(st.lists(st.sampled_from(ways), min_size=1, max_size=2)):
        try:
            document = replaced(document, path, data.draw(VALUES))
        except (KeyError, IndexError, TypeError):
            continue  # the first change took away the place of the second
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    options: dict[str, list[list[str]]] = {
        "check": [[]],
        "evaluate": [[], ["--json"]],
        "export": [["--to", "megatron"]],
    }
    assert_sane([command, str(path), *data.draw(st.sampled_from(options[command]))])


@FUZZ
@given(data=st.data())
def test_any_value_in_a_launch_script(tiny: Path, tmp_path: Path, data: st.DataObject) -> None:
    words = (tiny / "run.sh").read_text().split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(words) - 1))
        words[place] = data.draw(
            st.sampled_from(
                ["0", "-1", "3", "9" * 20, "nan", "--bf16", "--num-experts", "'", '"', "$X", "${Y:?z", "(", ""]
            )
        )
    path = tmp_path / "run.sh"
    path.write_text(" ".join(words))
    assert_sane(["evaluate", "--megatron-args", str(path), "--cluster", CLUSTER])


NAMES = ["tp", "pp", "dp", "cp", "ep", "etp", "vpp", "mbs", "gpus", "recompute", "recompute_layers", "sharding",
         "offload", "sequence_parallel", "flash", "overlap_tp", "rank_order", "first_layers"]  # fmt: skip
PIN = st.builds(
    "{}={}".format,
    st.sampled_from(NAMES),
    st.lists(
        st.sampled_from(
            ["0", "1", "2", "3", "4", "-1", "1.5", "1e9", "on", "off", "none", "full", "zero1", "block", ""]
        ),
        min_size=1,
        max_size=3,
    ).map(",".join),
)


@FUZZ
@given(st.lists(st.one_of(PIN, st.text(max_size=8)), min_size=1, max_size=3))
def test_any_pins(tiny: Path, pins: list[str]) -> None:
    arguments = ["plan", "--model", str(tiny), "--cluster", CLUSTER, "--global-batch", "8", "--seq-len", "128"]
    assert_sane([*arguments, *(word for pin in pins for word in ("--set", pin.replace("\x00", "")))])
