"""Plans from text, as `plan_from_launch` makes them from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardwright import Cluster, Job, Model
from shardwright.importers.launches import launches
from shardwright.importers.megatron.read import Reading, reading_of_launch, training_of
from shardwright.importers.shell.read import read_script


def plan_from_megatron(
    text: str,
    *,
    cluster: Cluster,
    model: Model | None = None,
    job: Job | None = None,
    name: str = "megatron arguments",
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Reading:
    """Return the plan that the launch line or script `text` runs on `cluster`. `job` supplies what the arguments leave
    open."""
    script = read_script(text, name, arguments=arguments, environment=environment, folder=folder)
    launch = training_of(launches(script), name)
    return reading_of_launch(launch, script, cluster=cluster, model=model, job=job, name=name)
