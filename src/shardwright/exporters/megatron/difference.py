"""What to change on a Megatron-LM command line to run another plan."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from shardwright.errors import SpecError
from shardwright.exporters.megatron.export import to_megatron
from shardwright.plans.plan import Plan

# What reading a launch takes for granted, so that writing it would change nothing.
SILENT = frozenset(("--ckpt-format", "--log-throughput", "--log-interval", "--padded-vocab-size"))


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """Arguments to write, which replace those of the same name, and arguments to leave out."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


def difference(before: Plan, after: Plan) -> ArgumentDifference | None:
    """Return what makes a command line for `before` one for `after`; None where Megatron-LM cannot run one of them."""
    try:
        old, new = (_arguments(plan) for plan in (before, after))
    except SpecError:
        return None
    added = tuple(shlex.join((flag, *values)) for flag, values in new.items() if old.get(flag) != values)
    return ArgumentDifference(added, tuple(flag for flag in old if flag not in new))


def _arguments(plan: Plan) -> dict[str, tuple[str, ...]]:
    groups = to_megatron(plan).groups
    return {argument[0]: argument[1:] for group in groups for argument in group.arguments if argument[0] not in SILENT}
