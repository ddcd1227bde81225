"""Puts exported tasks through SkyPilot's own code, offline. Run as `checking` says."""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("HOME", tempfile.mkdtemp())

import sky
import yaml
from sky.utils import dag_utils


def values(files: dict[str, str], world_size: int) -> dict[str, Any]:
    """Return the tasks that SkyPilot makes of the YAML: name, machines, accelerators, spot."""
    documents = list(yaml.safe_load_all(files["task.yaml"]))
    settings = [(name, "x") for document in documents for name in document.get("envs") or {}]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        os.chdir(folder)
        try:
            if len(documents) == 1:
                tasks = [sky.Task.from_yaml_config(documents[0], env_overrides=settings)]
            else:
                tasks = dag_utils.load_job_group_from_yaml("task.yaml", env_overrides=settings).tasks
        finally:
            os.chdir("/")
    found = []
    for task in tasks:
        (resources,) = task.resources
        found.append([task.num_nodes, dict(resources.accelerators), resources.use_spot])
    if sum(nodes * sum(gpus.values()) for nodes, gpus, _ in found) != world_size:
        raise ValueError("the tasks do not have the GPUs of the plan")
    return {"tasks": found}


if __name__ == "__main__":
    import_module("checking").answer(values)
