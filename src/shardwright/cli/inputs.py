"""Inputs that several commands share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import SpecError, bad

if TYPE_CHECKING:
    from shardwright.search.rules.rules import Rule
    from shardwright.spec.cluster import Cluster
    from shardwright.spec.job import Job

FLAGS = {"budget_dollars": "--budget", "deadline_hours": "--deadline", "document_tokens": "--mask-documents"}


def job_of(**options: Any) -> Job:
    """Return the job that options make (`make_job`). Raises SpecError that names the flags, not the arguments."""
    from shardwright.spec.read.job import make_job

    try:
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
