"""What an exporter gives: files for a target, and the same as data; or what the target cannot run, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pprint import pformat
from types import MappingProxyType

from shardwright.errors import Problem
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.units import format_seconds

NOTHING: Mapping[str, str] = MappingProxyType({})


@record
class Exported:
    """Files by name, the main one first, for release `version` of a target. `document` is what `export --json` prints
    beside target and version."""

    target: str
    version: str
    files: Mapping[str, str]
    document: Mapping[str, object]

    @property
    def main(self) -> str:
        """The text of the main file."""
        return next(iter(self.files.values()))


@dataclass(frozen=True, slots=True)
class Limit(Problem):
    """A problem that settings of the search mend: `pins`, as `--set` takes them (`sharding=zero2,zero3`)."""

    pins: str = ""


def limit(path: str, message: str, pins: str) -> Limit:
    """Return a limit, whose hint is the flag of its pins."""
    return Limit(path, message, f"--set {pins}", pins)


def run_script(title: str, *lines: str) -> str:
    """Return a script in bash that ends with its first fault."""
    return "\n".join(["#!/usr/bin/env bash", f"# {title}", "set -euo pipefail", *lines]) + "\n"


def torchrun(plan: Plan, program: str) -> str:
    """Return how each machine starts its processes of `program`; which number it has, and the address of the first, are
    the user's to say in the environment."""
    sizes = machine_sizes(plan)
    even = len(set(sizes)) == 1
    counts = "" if even else f"GPUS=({' '.join(map(str, sizes))})\n"
    processes = sizes[0] if even else '"${GPUS[NODE_RANK]}"'
    words = f"{counts}exec torchrun --nnodes {len(sizes)} --nproc-per-node {processes}"
    if len(sizes) > 1:
        words += ' --node-rank "${NODE_RANK:?number of this machine}" \\\n'
        words += '    --master-addr "${MASTER_ADDR:?address of machine 0}" --master-port 29500'
    return f"{words} \\\n    {program}"


def call_text(
    name: str, values: Mapping[str, object], expressions: Mapping[str, str] = NOTHING, indent: int = 1
) -> str:
    """Return the call of a class in a Python file, as an argument of another one: values, then `expressions`."""
    lines = [f"{key}={pformat(value, width=100, compact=True, indent=indent)}," for key, value in values.items()]
    lines += [f"{key}={text}," for key, text in expressions.items()]
    return "\n".join([f"{name}(", *(f"            {line}" for line in lines), "        )"])


def plan_words(plan: Plan) -> str:
    """Return a uniform plan in one line, fit for the docstring of a Python file."""
    name = " ".join(plan.model.name.split()).replace('"', "'").replace("\\", "/")
    words = f"{name} on {plan.gpus} {plan.stages[0].gpu}."
    if plan.prediction is not None:
        words += f" Predicted: {format_seconds(plan.prediction.iteration_seconds)} a step."
    return words


def yaml_text(document: Mapping[str, object]) -> str:
    """Return a document as YAML; text of several lines as blocks."""
    import yaml  # which planning does without

    class Dumper(yaml.SafeDumper):
        pass

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Dumper.add_representer(str, block)
    return str(yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110))
