"""Who runs what, as data: `data/support.csv` has a row a fact, `data/trainers.csv` the trainers with their releases.

A fact says whether targets run a `value` of a `subject`: yes, no, or within a limit. `when` is a rule on candidates
(docs/rules.md) that says where they do not, for models with the trait `only`; a search that is given these rules looks
at what the target runs and at nothing else. `message` and `remedy` are what a refusal says; a remedy that is a setting
of the search begins with `--set`; `only` may also be what a job asks (`traits.names_of_job`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Literal, cast

from shardwright.exporters.support.traits import names, names_of_job
from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.search.rules.rules import Rule, parse_rules
from shardwright.spec.job import Job
from shardwright.spec.model import Model

PACKAGE = "shardwright.exporters.support"
Runs = Literal["yes", "no", "limit"]


@record
class Trainer:
    """A trainer that plans are exported to or that is ours: its `framework` is what plans for it are priced as (empty
    where no search is for it), `title` and `version` what the facts are of."""

    name: str
    framework: str
    title: str
    version: str


@record
class Fact:
    """A row of the matrix, of one target."""

    target: str
    subject: str
    value: str
    runs: Runs
    when: str
    only: str
    path: str
    message: str
    remedy: str
    source: str

    @property
    def version(self) -> str:
        """The release of the target that the fact is of."""
        return trainers()[self.target].version


@cache
def trainers() -> Mapping[str, Trainer]:
    """Return the trainers by name."""
    return {row["name"]: Trainer(**row) for row in shipped_table(PACKAGE, "trainers.csv")}


@cache
def facts(target: str = "") -> tuple[Fact, ...]:
    """Return the facts of a target, or of all."""
    rows = shipped_table(PACKAGE, "support.csv")
    return tuple(
        Fact(target=name, runs=cast("Runs", row["runs"]), **{key: row[key] for key in row if key in _TEXTS})
        for row in rows
        for name in row["targets"].split()
        if target in ("", name)
    )


_TEXTS = frozenset(("subject", "value", "when", "only", "path", "message", "remedy", "source"))


def fact(target: str, subject: str, value: str) -> Fact | None:
    """Return the fact of a value, None where there is none."""
    return _by_value(target).get((subject, value))


@cache
def _by_value(target: str) -> Mapping[tuple[str, str], Fact]:
    return {(row.subject, row.value): row for row in facts(target)}


def limits_in_rules(target: str, model: Model, job: Job | None = None) -> tuple[tuple[Fact, Rule], ...]:
    """Return the facts that rule out candidates for a model, and for a job where it is given, each with its rule."""
    there = names(model) | (frozenset() if job is None else names_of_job(job))
    there |= {"dense"} if "experts" not in there else set()
    there |= {"tied"} if model.tied_embeddings else set()
    return tuple((row, _rule(row)) for row in facts(target) if row.when and (not row.only or row.only in there))


@cache
def _rule(row: Fact) -> Rule:
    (rule,) = parse_rules(row.when, f"{PACKAGE}: {row.subject} {row.value}")
    return replace(rule, name=f"{trainers()[row.target].title}: {row.subject} {row.value}")
