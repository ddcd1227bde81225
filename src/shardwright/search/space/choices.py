"""Options of the trainer that the user pins: each combination of their values is a job, and a search of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from shardwright.errors import bad
from shardwright.spec.job import Job
from shardwright.spec.options import VALUES, ordered

DEFAULT = "default"  # the framework's own
Choice = str | tuple[str, ...] | None
Choices = Mapping[str, tuple[Choice, ...]]


def parse_choice(name: str, word: str) -> Choice:
    """Return the value of the option `name` that a word stands for: modules are joined by `+`. Raises SpecError."""
    if word.casefold() == DEFAULT:
        return None
    parts = [part.strip().casefold() for part in word.split("+")]
    several = name == "recompute_modules"
    if (len(parts) > 1 and not several) or any(part not in VALUES[name] for part in parts):
        joined = "some joined by + of " if several else "one of "
        hint = joined + ", ".join(VALUES[name]) + f", or {DEFAULT}"
        raise bad(f"`set={name}={word}`", f"{word!r} is no value of {name}", hint)
    return ordered(set(parts)) if several else parts[0]


def choice_words(name: str, values: tuple[Choice, ...]) -> str:
    """Return a choice as a user writes it: dispatcher=alltoall,flex."""
    return f"{name}=" + ",".join(
        DEFAULT if value is None else value if isinstance(value, str) else "+".join(value) for value in values
    )


def only_job(job: Job, choices: Choices) -> Job:
    """Return the job with the options chosen. Raises SpecError where these have several values."""
    for name, values in choices.items():
        if len(values) > 1:
            raise bad(f"`set={choice_words(name, values)}`", "has several values", "give one here")
    return jobs_of(job, choices)[0]


def jobs_of(job: Job, choices: Choices) -> tuple[Job, ...]:
    """Return the job with every combination of the options chosen; those that are not chosen stay as they are."""
    rows: list[Mapping[str, Any]] = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    return tuple(replace(job, options=replace(job.options, **row)) for row in rows)
