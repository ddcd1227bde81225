"""What a shell completes: names of the catalogue and of the exporters; and the script that makes it do so."""

from __future__ import annotations

from collections.abc import Iterable

import click

from shardwright.errors import bad

SHELLS = ("bash", "zsh", "fish")


def script(command: click.Command, shell: str) -> str:
    """Return the script that makes a shell complete the words of a command. Raises SpecError for another shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell) if shell in SHELLS else None
    if kind is None:
        raise bad("--show-completion", f"{shell!r} is no known shell", f"one of {', '.join(SHELLS)}")
    return kind(command, {}, "shardwright", "_SHARDWRIGHT_COMPLETE").source()


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
