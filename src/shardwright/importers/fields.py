"""Fields of a configuration that are read, and what they make: a job, and Megatron-LM's arguments for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright.errors import Problem
from shardwright.exporters.megatron.model import Values, arguments_of
from shardwright.importers.paths import first
from shardwright.importers.python_values import COMPUTED, Path
from shardwright.records import record
from shardwright.spec.adapter import Frozen
from shardwright.spec.job import Job


@record
class Peft:
    """Adapters as PEFT is told of them: beside `modules`, "all-linear" for all that are linear, of PEFT's choice where
    it is None. `by_type`: the trainer finds all linear ones itself, as axolotl and LLaMA-Factory do. `spares_tower`: in
    the language model alone. `place` is the field that names them."""

    rank: int
    alpha: float | None
    dora: bool
    frozen: Frozen
    modules: tuple[str, ...] | str | None
    by_type: bool = False
    spares_tower: bool = False
    place: str


@record(kw_only=False)
class TrainerSettings:
    """A configuration as a job, whose batch and length are among the arguments of Megatron-LM that say the rest. With
    what is not modelled, the name of the model where it has one, and what had to be assumed. Which matrices `peft`
    names, and whether `liger` (by whose list of families) has a kernel of the loss, is decided by the model."""

    words: tuple[str, ...]
    uncounted: tuple[str, ...]
    job: Job
    model: str | None = None
    notes: tuple[str, ...] = ()
    peft: Peft | None = None
    liger: str = ""


def words_of(values: Values) -> tuple[str, ...]:
    """Return arguments of Megatron-LM, by their flags, as words."""
    return tuple(word for argument in arguments_of(values) for word in argument)


def job_of(framework: str, **changes: Any) -> Job:
    """Return a job whose batch and sequence length are still to be said."""
    return replace(Job(global_batch=1, seq_len=0, framework=framework), **changes)


@record(kw_only=False)
class TrainerFields:
    """Fields of a configuration by path, its name, and the problems found while it is read. `written` says of keys that
    are read under another name how they stand in the file."""

    values: Mapping[Path, Any]
    name: str
    problems: list[Problem]
    written: Mapping[str, str]

    def first(self, *leaves: str) -> Any:
        """Return the first of these fields that is said; "auto" leaves it to others."""
        value = first(self.values, *leaves)
        return None if value == "auto" else value

    def whole(self, leaf: str, otherwise: int) -> int:
        """Return a whole number, `otherwise` where nothing is said, and after naming what is wrong: also a number
        below 1, unless `otherwise` is as low."""
        value = next((value for path, value in self.values.items() if path[-1] == leaf), None)
        if value is COMPUTED:
            self.report(leaf, "is computed when the file runs", "write the value itself")
        elif isinstance(value, int) and not isinstance(value, bool):
            if value >= min(otherwise, 1):
                return value
            self.report(leaf, f"is {value}", f"write {min(otherwise, 1)} or more")
        elif value is not None and value != "auto":
            self.report(leaf, f"is {value!r}", "write a whole number, without quotes")
        return otherwise

    def number(self, leaf: str, otherwise: float) -> float:
        """Return a number above 0, `otherwise` where nothing is said, and after naming what is wrong."""
        value = self.first(leaf)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
        if value is not None:
            self.report(leaf, f"is {value!r}", "write a number above 0, without quotes")
        return otherwise

    def beside(self, values: Mapping[Path, Any]) -> TrainerFields:
        """Return other fields of the same launch, whose problems join these."""
        return replace(self, values=values)

    def report(self, leaf: str, message: str, hint: str) -> None:
        """Add a problem with a field."""
        self.problems.append(Problem(f"{self.name}: {self.written.get(leaf, leaf)}", message, hint))
