"""Inputs that several commands share."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import SpecError, bad

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from shardwright.cli.options import LaunchOptions
    from shardwright.importers.megatron.read import Reading
    from shardwright.search.rules.rules import Rule
    from shardwright.spec.cluster import Cluster
    from shardwright.spec.job import Job

FLAGS = {"budget_dollars": "--budget", "deadline_hours": "--deadline", "document_tokens": "--mask-documents"}
DURATION = re.compile(r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)\s*(?P<unit>[a-z]*)", re.I)
HOURS = {"": 1.0, "h": 1.0, "hours": 1.0, "hour": 1.0, "d": 24.0, "days": 24.0, "day": 24.0, "w": 168.0, "weeks": 168.0}


def job_of(*groups: DataclassInstance, **options: Any) -> Job:
    """Return the job that options and groups of options make (`make_job`). Raises SpecError that names the flags, not
    the arguments."""
    from shardwright.spec.read.job import make_job

    try:
        for group in groups:
            options |= asdict(group)
        return make_job(**options)
    except SpecError as error:
        problems = [
            replace(problem, path=FLAGS.get(problem.path, f"--{problem.path.replace('_', '-')}"))
            for problem in error.problems
        ]
        raise SpecError(*problems) from None


def rules_of(file: Path | None, cluster: Cluster) -> tuple[Rule, ...]:
    """Return the rules of a file, which may name the GPUs of `cluster`, none without a file."""
    if file is None:
        return ()
    from shardwright.search.rules.rules import load_rules

    return load_rules(file, [pool.gpu.kind for pool in cluster.pools])


def part(text: str, option: str, most: float = 1.0) -> float:
    """Return the number of `1%` or `0.01`, up to `most`. Raises SpecError for anything else."""
    number, scale = (text.strip()[:-1], 0.01) if text.strip().endswith("%") else (text, 1.0)
    try:
        share = float(number) * scale
    except ValueError:
        raise bad(f"{option} {text}", "is not a part of a whole", "write 1% or 0.01") from None
    if not 0.0 <= share <= most:
        raise bad(f"{option} {text}", f"is not between 0 and {most:g}", "write 1% or 0.01")
    return share


def length_of_documents(file: Path | None, seq_len: int) -> float | None:
    """Return the length of the documents that attention stays within, None where it does not."""
    if file is None:
        return None
    from shardwright.runtime.storage.data import document_tokens, open_tokens

    return document_tokens(open_tokens(file), seq_len)


def hours(text: str | None, option: str) -> float | None:
    """Return the hours of `30d`, `720h`, `2w` or a plain number of hours. Raises SpecError for anything else."""
    if text is None:
        return None
    match = DURATION.fullmatch(text.strip())
    if match is None or match["unit"].casefold() not in HOURS or float(match["number"]) == 0.0:
        raise bad(f"{option} {text}", "is no duration", "write 30d, 720h or a number of hours")
    return float(match["number"]) * HOURS[match["unit"].casefold()]


def dollars(text: str | None, option: str) -> float | None:
    """Return the dollars of `2M`, `500k`, `$50,000` or a plain number. Raises SpecError for anything else."""
    if text is None:
        return None
    from shardwright.spec.read.job import parse_count

    try:
        return parse_count(text.strip().removeprefix("$"), option)
    except SpecError:
        raise bad(f"{option} {text}", "is no amount of money", "write 2M, 500k or a number of US dollars") from None


def require_no_launch(launched: LaunchOptions) -> None:
    """Raise SpecError for options of a launch where there is none."""
    for name in ("cluster", "model", "env", "seq_len", "preference"):
        if getattr(launched, name) not in (None, ()):
            flag = f"--{name.replace('_', '-')}"
            raise bad(flag, "goes with --launch; a plan file has its own", f"leave {flag} out")


def read_launch(path: Path, arguments: tuple[str, ...], launched: LaunchOptions) -> Reading:
    """Return the plan of a launch script, with notes on how it was read."""
    from shardwright.importers.launch import plan_from_launch
    from shardwright.spec.read.cluster import load_cluster
    from shardwright.spec.read.model import load_model

    environment = {}
    for word in launched.env:
        name, sign, value = word.partition("=")
        if not sign or not name.isidentifier():
            raise bad(f"--env {word}", "is not NAME=VALUE", "write --env TP=8")
        environment[name] = value
    return plan_from_launch(
        path,
        cluster=None if launched.cluster is None else load_cluster(launched.cluster),
        model=None if launched.model is None else load_model(launched.model, accept_guess=launched.accept_guess),
        seq_len=launched.seq_len,
        preference=launched.preference,
        arguments=arguments,
        environment=environment,
    )
