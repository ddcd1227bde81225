"""Every key of every trainer's own configuration is accounted for: read, known to change nothing, or named.

The lists of `schemas/` are made of the trainers' packages by `tests.targets.schemas`.
"""

from __future__ import annotations

import ast
import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import shardwright.importers
from shardwright.importers.megatron.flags import hyphenated, known_flags, read_as
from shardwright.importers.python_values import COMPUTED
from shardwright.importers.settings import NEMO_1, TABLES, accounted, defaults, key_of, known_keys

SCHEMAS = Path(__file__).parent / "schemas"
SOURCES = Path(shardwright.importers.__file__).parent
CHAINS = {
    "transformers": ("transformers",),
    "trl": ("trl", "transformers"),
    "llamafactory": ("llamafactory", "transformers"),
    "axolotl": ("axolotl",),
    "accelerate": ("accelerate",),
    "deepspeed": ("deepspeed",),
    "torchtitan": ("torchtitan",),
    "bridge": TABLES,
    "nemo": ("nemo", *TABLES),
    "nemo1": NEMO_1,
    "foundry": ("foundry",),
    "torchtune": ("torchtune",),
}
FEWEST = {
    "nemo": 80,
    "nemo1": 90,
    "torchtune": 60,
    "transformers": 110,
    "trl": 140,
    "llamafactory": 230,
    "axolotl": 400,
    "accelerate": 140,
}
READERS = ("trainers.py", "torchtitan.py", "torchtune.py", "foundry.py", "adapters.py", "choices.py")
NO_SWITCHES = (
    *("loss_in_parts", "shards_as_loaded", "widens_trained"),  # of ours
    *("finetuning_type", "parallelism.fsdp_reshard_after_forward"),  # which have names for both
)
# Keys whose values by default are of another run than plain training of all weights: not taken for what is refused.
OF_OTHER_RUNS = {"trl": "refused", "llamafactory": "finetuning_type"}


@cache
def schema(trainer: str) -> dict[str, Any]:
    """Return the keys of a trainer's own configuration with their defaults, COMPUTED where these are no literals."""
    lines = (SCHEMAS / f"{trainer}.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# ")
    parts = (line.partition(" ") for line in lines[1:])
    return {key: json.loads(default) if default else COMPUTED for key, _, default in parts}


@pytest.mark.parametrize("trainer", CHAINS)
def test_every_key_of_a_trainer_is_accounted_for(trainer: str) -> None:
    keys = schema(trainer)
    assert len(keys) >= FEWEST.get(trainer, 100)
    assert not [key for key in keys if not _known(trainer, tuple(key.split(".")))]


def _known(trainer: str, path: tuple[str, ...]) -> bool:
    if key_of(path, CHAINS[trainer]) is not None:
        return True
    return trainer in ("bridge", "nemo", "nemo1") and read_as(f"--{hyphenated(path[-1])}") in known_flags()


def test_every_argument_of_megatron_lm_is_accounted_for() -> None:
    missing = {f"--{hyphenated(key)}" for key in schema("megatron")} - set(known_flags())
    assert not missing


@pytest.mark.parametrize("trainer", CHAINS)
def test_what_a_trainer_takes_anyway_is_neither_refused_nor_named(trainer: str) -> None:
    """A file that writes out defaults is the same run."""
    plain = accounted({}, CHAINS[trainer], "file", []).uncounted
    for key, default in schema(trainer).items():
        row = key_of(tuple(key.split(".")), CHAINS[trainer])
        if default is COMPUTED or row is None or row.effect in ("none", "holds"):
            continue
        if row.effect == "refused" and OF_OTHER_RUNS.get(trainer) in ("refused", key):
            continue
        problems: list[Any] = []
        result = accounted({tuple(key.split(".")): default}, CHAINS[trainer], "file", problems)
        assert f"file: {key}" not in [problem.path for problem in problems], (key, default)
        assert not [words for words in result.uncounted if words.startswith(key) and words not in plain], (key, default)


@pytest.mark.parametrize("trainer", CHAINS)
def test_tables_say_why(trainer: str) -> None:
    with (SOURCES / "data" / f"{trainer}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [key for row in rows if row["effect"] != "default" for key in row["keys"].split()]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})
    for row in rows:
        assert row["effect"] in ("read", "none", "uncounted", "refused", "holds", "default")
        assert row["keys"] and (row["words"] or row["effect"] in ("read", "holds", "default")), row
        assert row["effect"] != "read" or not row["usual"] or row["words"], row
    for key in defaults(trainer):
        assert known_keys(trainer)[key].effect in ("read", "refused", "uncounted"), key


def test_what_readers_ask_for_is_read_by_the_tables() -> None:
    """A key that a reader asks for and a table calls without effect never reaches it."""
    rows = [(name, key) for trainer in CHAINS for name, key in known_keys(trainer).items()]
    read = {name.rsplit(".", 1)[-1] for name, key in rows if key.effect == "read"}
    parts = [part.split() for _, key in rows for part in key.means.removeprefix("not ").split("+")]
    read |= {part[0].rsplit(".", 1)[-1] for part in parts if part}
    for file in READERS:
        asked = _asked(SOURCES / file)
        assert len(asked) > 5
        assert asked <= read, asked - read


def _taken_for_switches(file: Path) -> set[str]:
    """Return the literals of which a module asks whether they are true, or false."""
    tests = (node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Compare))
    return {
        word.value
        for test in tests
        if isinstance(test.ops[0], ast.Is | ast.IsNot)
        and isinstance(test.comparators[0], ast.Constant)
        and isinstance(test.comparators[0].value, bool)
        and isinstance(test.left, ast.Call)
        for word in test.left.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    }


def _asked(file: Path) -> set[str]:
    """Return the literals that a module hands to `first` and `whole`."""
    calls = (node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return {
        word.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("first", "whole")
        for word in call.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    }


def test_a_switch_has_no_third_value() -> None:
    """A key that a reader takes for true or false is refused where it says neither, and may stand in quotes."""
    switches, asked = set[str](), 0
    for file in READERS:
        switches |= _taken_for_switches(SOURCES / file)
    rows = [(trainer, *row) for trainer in CHAINS for row in known_keys(trainer).items()]
    for trainer, name, key in rows:
        leaf = (key.means.partition("+")[0].split() or [name])[0].rsplit(".", 1)[-1]
        if key.effect != "read" or leaf not in switches or key.means.startswith(("not ", "--")) or name in NO_SWITCHES:
            continue
        asked += 1
        for value in (True, False, "maybe", 7):
            problems: list[Any] = []
            read = accounted({tuple(name.split(".")): value}, (trainer,), "file", problems).values
            quoted = accounted({tuple(name.split(".")): str(value)}, (trainer,), "file", []).values
            assert bool(problems) == (not isinstance(value, bool)), (trainer, name, value, problems)
            assert problems or quoted == read, (trainer, name, value)
    assert asked > 50


@pytest.mark.parametrize("trainer", CHAINS)
def test_a_section_that_is_none_is_refused(trainer: str) -> None:
    for name, key in known_keys(trainer).items():
        problems: list[Any] = []
        accounted({tuple(name.split(".")): 7}, CHAINS[trainer], "file", problems)
        assert key.effect != "holds" or len(problems) == 1, name


def test_null_is_no_default() -> None:
    """But where the trainer derives the value: TRL trains in bf16 unless it is told fp16."""
    null = accounted(
        dict.fromkeys((("bf16",), ("max_length",), ("gradient_checkpointing",))), CHAINS["trl"], "file", []
    )
    assert null.values[("bf16",)] is True
    assert not {("max_length",), ("gradient_checkpointing",)} & set(null.values)


@pytest.mark.parametrize(
    ("values", "contradictory"),
    [
        ({("deepspeed_config", "gradient_accumulation_steps"): 1, ("gradient_accumulation_steps",): 8}, True),
        ({("deepspeed_config", "gradient_accumulation_steps"): "auto", ("gradient_accumulation_steps",): 8}, False),
        ({("deepspeed_config", "gradient_accumulation_steps"): 8, ("gradient_accumulation_steps",): 8}, False),
        ({("dtype",): "bfloat16", ("torch_dtype",): "float16"}, True),
        ({("use_lora",): True, ("use_peft",): False}, True),
        ({("lora_r",): 8, ("lora_rank",): 16}, True),
    ],
)
def test_what_is_said_twice_is_said_alike(values: dict[tuple[str, ...], Any], contradictory: bool) -> None:
    problems: list[Any] = []
    accounted(values, ("transformers", "accelerate"), "file", problems)
    assert len(problems) == contradictory


def test_arguments_of_megatron_lm_say_why_they_change_nothing() -> None:
    silent = [flag for flag, known in known_flags().items() if not (known.reads or known.means or known.words)]
    assert not silent
