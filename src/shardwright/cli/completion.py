"""Names that a shell completes: those of the catalogue and of the exporters."""

from __future__ import annotations

from collections.abc import Iterable


def models(incomplete: str) -> list[str]:
    """Return the presets that begin like that."""
    from shardwright.spec.read.presets import preset_names

    return _beginning(preset_names(), incomplete)


def gpus(incomplete: str) -> list[str]:
    """Return the GPUs that begin like that."""
    from shardwright.spec.catalog.gpus import gpus as known

    return _beginning(known(), incomplete)


def targets(incomplete: str) -> list[str]:
    """Return the targets of `export` that begin like that."""
    from shardwright.exporters.targets import TARGETS

    return _beginning(TARGETS, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.casefold().startswith(incomplete.casefold())]
