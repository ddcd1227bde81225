"""A launch script as the commands that it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwright.errors import bad
from shardwright.importers.shell.assignment import names_assigned
from shardwright.importers.shell.brackets import NotReadError, ShellSyntaxError
from shardwright.importers.shell.expansion import DemandedError
from shardwright.importers.shell.interpreter import Interpreter
from shardwright.importers.shell.parser import parse
from shardwright.importers.shell.slurm import sbatch, slurm_variables
from shardwright.importers.shell.state import ShellState, Started, TooMuchError
from shardwright.importers.shell.unknown import purged, shown, unknown
from shardwright.importers.shell.walker import Ended

LARGEST_FILE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellScript:
    """What a script starts, in order. `assumed` are variables that it does not set, with the defaults taken instead;
    `arrays` the elements of every array and variable, `reasons` why a variable is not known, `files` what the script
    writes into files, `slurm` what its #SBATCH lines ask for; `text` is the script itself."""

    started: tuple[Started, ...]
    assumed: Mapping[str, str]
    arrays: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]
    files: Mapping[str, str]
    slurm: Mapping[str, str]
    text: str


def read_script(
    text: str,
    name: str,
    *,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ShellScript:
    """Return what the script `text` starts with `arguments` and the variables of `environment`.

    Nothing is run. Scripts that it sources or calls are read from `folder`. Raises SpecError for text that is no
    shell script, and for one that grows beyond all reason.
    """
    text = purged(text)
    slurm = sbatch(text)
    given = slurm_variables(slurm) | dict(environment or {})
    interpreter = Interpreter(text, _finder(folder))
    state = ShellState(
        name=name,
        own=names_assigned(text),
        substitute=lambda script, state: _output(interpreter, script, state),
        variables=dict(given),
        exported=set(given),
        arguments=arguments,
        arguments_given=bool(arguments),
    )
    try:
        interpreter.run(parse(text), state)
    except Ended:
        pass
    except DemandedError as demanded:
        variable, _, words = str(demanded).partition(": ")
        raise bad(f"{name}: {variable}", f"the script ends without it: {words}", f"add --env {variable}=…") from None
    except ShellSyntaxError as error:
        line = text.count("\n", 0, min(error.position, len(text))) + 1
        reason = "not read here" if isinstance(error, NotReadError) else "bash refuses it"
        raise bad(f"{name}: line {line}", f"{reason}: {error}", "correct the script") from None
    except (TooMuchError, RecursionError):
        raise bad(name, "grows to more than a launch script is as it is read", "is this the right file?") from None
    return ShellScript(
        started=tuple(state.started),
        assumed=dict(state.assumed),
        arrays={key: tuple(state.items(key)) for key in state.variables},
        reasons=dict(state.reasons),
        files=dict(state.files),
        slurm=slurm,
        text=text,
    )


def _output(interpreter: Interpreter, script: str, state: ShellState) -> str:
    """Return what `$(script)` becomes."""
    own = state.copy()
    own.output, own.started = [], []
    try:
        interpreter.run(parse(script), own)
    except Ended:
        pass
    except ShellSyntaxError:
        return unknown(f"$({shown(script).strip()})")
    state.assumed |= own.assumed
    return "".join(own.output or []).rstrip("\n")


def _finder(folder: Path | None) -> Callable[[str], str | None]:
    """Return what finds the text of a script by its name, in `folder` alone."""

    def find(name: str) -> str | None:
        if folder is None or "\0" in name:
            return None
        for path in (folder / name, folder / Path(name).name):
            try:
                if path.is_file() and path.stat().st_size <= LARGEST_FILE:
                    return purged(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                continue
        return None

    return find
