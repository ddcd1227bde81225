"""`evaluate --launch`: a plan from a file that starts training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardwright.importers.megatron.read import plan_from_megatron
from shardwright.importers.reading import Reading
from shardwright.spec.cluster import Cluster
from shardwright.spec.model import Model
from shardwright.spec.text.reading import read_text


def plan_from_launch(
    path: Path,
    *,
    cluster: Cluster,
    model: Model | None = None,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Reading:
    """Return the plan that a launch script runs on `cluster`. Raises SpecError with every reason why none can be
    read."""
    return plan_from_megatron(
        read_text(path),
        cluster=cluster,
        model=model,
        name=str(path),
        arguments=arguments,
        environment=environment,
        folder=path.parent,
    )
