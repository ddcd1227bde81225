"""What tasks and jobs of YAML files run: SkyPilot's, Ray's, those of MosaicML's platform, and a ConfigMap's script."""

from __future__ import annotations

import re

from shardwright.errors import bad
from shardwright.importers.configurations import document
from shardwright.importers.foundry import mosaic_run
from shardwright.importers.paths import flattened

RAY = (("spec", "entrypoint"), ("entrypoint",))
DOCUMENT, RUN = "\n---\n", re.compile(r"^run:", re.MULTILINE)  # of YAML


def task_of(text: str, name: str) -> tuple[str, dict[str, str], dict[str, str]] | None:
    """Return what a task or job of a YAML file runs, with the environment and the files that it has there; None for any
    other."""
    if (mapped := _config_map(text, name)) is not None:
        return mapped.pop("run.sh"), {}, mapped
    task = _sky_task(text, name) or _ray_job(text, name)
    return mosaic_run(text, name) if task is None else (*task, {})


def _config_map(text: str, name: str) -> dict[str, str] | None:
    """Return the files of a ConfigMap with a script, as `export --to kubernetes` writes it; None for any other YAML."""
    parts = [part for part in text.split(DOCUMENT) if "kind: ConfigMap" in part]
    for fields in (dict(flattened(document(part, name))) for part in parts):
        if ("data", "run.sh") in fields:
            return {path[1]: str(value) for path, value in fields.items() if path[0] == "data" and len(path) == 2}
    return None


def _sky_task(text: str, name: str) -> tuple[str, dict[str, str]] | None:
    """Return what a task of SkyPilot runs, or each of a group that differ in numbers of machines alone, with the
    environment that it has there; None for any other YAML. Raises SpecError for a group of unlike tasks."""
    parts = text.split(DOCUMENT)
    every = [dict(flattened(document(part, name))) for part in parts if len(parts) == 1 or re.search(RUN, part)]
    fields = next((fields for fields in every if isinstance(fields.get(("run",)), str)), {})
    run = fields.get(("run",))
    if not isinstance(run, str):
        return None
    if len({re.sub(r"^export .*$", "", str(task.get(("run",))), flags=re.MULTILINE) for task in every}) > 1:
        raise bad(name, "is a group of tasks that start unlike programs", "give the one that trains")
    environment = {path[1]: str(value) for path, value in fields.items() if path[0] == "envs" and value is not None}
    gpus = next((str(value) for path, value in fields.items() if path[:2] == ("resources", "accelerators")), "")
    sizes = {"NUM_NODES": fields.get(("num_nodes",), 1), "NUM_GPUS_PER_NODE": gpus.partition(":")[2] or gpus}
    count = {f"SKYPILOT_{key}": str(value) for key, value in sizes.items() if str(value).isdigit()}
    return run, count | environment


def _ray_job(text: str, name: str) -> tuple[str, dict[str, str]] | None:
    """Return the entrypoint of a job of Ray (KubeRay's RayJob, or fields of its job API), with the environment that it
    has there; None for any other YAML."""
    fields = dict(flattened(document(text, name)))
    run = next((fields[path] for path in RAY if isinstance(fields.get(path), str)), None)
    if run is None:
        return None
    inner = fields.get(("spec", "runtimeEnvYAML"))
    around = dict(flattened(document(inner, name))) if isinstance(inner, str) else fields
    variables = {
        path[-1]: str(value) for path, value in around.items() if "env_vars" in path[:-1] and value is not None
    }
    return run, variables
