"""Writes docs/spmd-operators.md: which operators and modules of PyTorch train in SPMD programs as by autograd.

PYTHONPATH=. .venv/bin/python docs/make_spmd_operators.py [samples of each, all if not given]
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.spmd.databases import Entry, Verdict, judged_as, modules, operators, verdicts

from shardwright.files import write_atomically

PAGE = Path(__file__).with_name("spmd-operators.md")
SEED = 30
LEAD = """# Operators in SPMD programs

Made by `docs/make_spmd_operators.py` from the databases by which PyTorch {version} tests itself, `op_db` and
`module_db`, with {samples} of each operator and module. A sample is traced as a training step and run on two to four
ranks that hold unequal parts, some of them none; each operator of the step, forward and backward, runs by a rule drawn
at random from those that it has. *Equal*: value and every gradient are autograd's, of the whole tensors, in every
sample. *Refused*: `spmd plan` says by name what cannot be done, and writes nothing. *In part*: some samples equal, the
others refused. *Skipped*: PyTorch itself does not run them on a CPU.

| | equal | in part | refused | wrong | skipped |
|---|---|---|---|---|---|
{rows}

Of the differentiable operators that are not skipped, {share:.0%} are equal.

## Refused, at least in part

| reason | operators and modules |
|---|---|
{reasons}
"""
WORDS = ("equal", "in part", "refused", "wrong", "skipped")
Judged = list[tuple[Entry, list[Verdict]]]


def page(ops: Judged, parts: Judged, samples: str) -> str:
    """Return the page."""
    kinds = {
        "differentiable operators": [pair for pair in ops if pair[0].differentiable],
        "other operators": [pair for pair in ops if not pair[0].differentiable],
        "modules": parts,
    }
    counts = {kind: Counter(judged_as(several) for _, several in pairs) for kind, pairs in kinds.items()}
    rows = [f"| {kind} | {' | '.join(str(count[word]) for word in WORDS)} |" for kind, count in counts.items()]
    trained = counts["differentiable operators"]
    reasons: dict[str, list[str]] = defaultdict(list)
    for entry, several in (*ops, *parts):
        for reason in dict.fromkeys(verdict.reason for verdict in several if verdict.word in ("refused", "wrong")):
            reasons[reason].append(f"`{entry.name}`")
    lines = [f"| {reason.replace('|', '·')} | {', '.join(names)} |" for reason, names in _by_names(reasons)]
    return LEAD.format(
        version=torch.__version__.partition("+")[0],
        samples=samples,
        rows="\n".join(rows),
        share=trained["equal"] / (trained.total() - trained["skipped"]),
        reasons="\n".join(lines),
    )


def _by_names(reasons: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    return sorted(reasons.items(), key=lambda pair: (-len(pair[1]), pair[0]))


def main(arguments: Sequence[str]) -> None:
    limit = int(arguments[0]) if arguments else None
    judged: list[Judged] = []
    for entries in (operators(), modules()):
        judged.append([])
        for entry in entries:
            judged[-1].append((entry, verdicts(entry, limit, SEED)))
            print(entry.name, judged_as(judged[-1][-1][1]), flush=True)
    samples = "every sample" if limit is None else f"the first {limit} samples" if limit > 1 else "the first sample"
    write_atomically(PAGE, page(*judged, samples))


if __name__ == "__main__":
    main(sys.argv[1:])
