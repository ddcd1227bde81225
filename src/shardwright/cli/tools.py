"""The commands as tools for other programs: their parameters as click parses them are the schema, and what they print
with `--json` is the answer.

A tool takes the parameters of its command under their own names (`global_batch` for `--global-batch`), and `files`: the
texts of files that other parameters name. The command runs in a folder with those files, in a process that opens no
other; it is the command line in all else.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import click
from click.exceptions import ClickException

import shardwright
from shardwright.cli.app import app, problems_of
from shardwright.errors import SpecError, bad, suggestion
from shardwright.serving.answers import Answer, error_answer
from shardwright.serving.tools import Schema, Tool, Toolbox

# The commands that are tools, with the document that each prints.
DOCUMENTS: Mapping[str, str] = {
    "plan": "ranking",
    "shop": "shop",
    "fit": "fit",
    "evaluate": "evaluation",
    "diagnose": "diagnosis",
    "export": "export",
    "check": "check",
    "validate": "validation",
    "discover": "discovery",
    "calibrate": "calibrate",
    "simulate-spot": "simulation",
    "support": "support",
    "gpus": "gpus",
    "models": "models",
    "prices": "prices",
}
NO_TOOLS: Mapping[str, str] = {
    "train": "trains",
    "spmd": "executes the user's module",
    "rehearse": "executes a trainer's code",
    "profile": "occupies the GPUs of the machine",
    "recover": "asks the keepers of a running job",
    "tokens": "makes data to train on",
    "checkpoint": "copies weights",
    "draw": "makes a picture",
    "report": "makes a page",
    "schema": "is what lists of tools say",
    "serve": "is a server",
    "mcp": "is a server",
}
SHOWN = ("json", "details")  # how the command line prints
FILES: Schema = {
    "type": "object",
    "description": "Texts of files, by the names under which other parameters, or the files themselves, name them.",
    "additionalProperties": {"type": "string"},
}
KINDS: Mapping[Any, str] = {click.INT: "integer", click.FLOAT: "number", click.BOOL: "boolean"}
NULL = os.path.realpath(os.devnull)


def toolbox() -> Toolbox:
    """Return the commands that are tools."""
    return Toolbox(tools=[_tool(name, document) for name, document in DOCUMENTS.items()], ask=answer)


def parameters(name: str) -> dict[str, click.Parameter]:
    """Return the parameters of a command as click parses them, by the names that a tool gives them."""
    return {_name(parameter): parameter for parameter in _command(name).params}


def answer(name: str, arguments: Mapping[str, Any], folder: str) -> Answer:
    """Return what a command prints with `--json`, run in a folder: `document` with the `notes` that it writes beside it
    on standard error, or `errors`. From then on this process opens no file outside the folder but those of Python and
    of the library."""
    os.chdir(folder)
    tempfile.tempdir = folder
    printed, remarks = io.StringIO(), io.StringIO()
    try:
        words = [name, *_words(name, arguments)]
        _write(arguments.get("files", {}))
        sys.addaudithook(_keeper(folder))
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(remarks):
            app(args=words, prog_name="shardwright", standalone_mode=False)
        text = printed.getvalue() or Path(str(arguments["out"])).read_text(encoding="utf-8")  # of `diagnose`
    except (SpecError, ClickException, OSError) as error:
        return error_answer(SpecError(*problems_of(error)))
    return {"document": json.loads(text), "notes": remarks.getvalue().splitlines()}


def _command(name: str) -> click.Command:
    command = app.get_command(click.Context(app), name)
    if command is None or name not in DOCUMENTS:
        raise bad(name, "is no tool", suggestion(name, DOCUMENTS))
    return command


def _tool(name: str, document: str) -> Tool:
    shown = {key: parameter for key, parameter in parameters(name).items() if key not in SHOWN}
    schema: Schema = {
        "type": "object",
        "properties": {**{key: _schema(parameter) for key, parameter in shown.items()}, "files": FILES},
        "required": [key for key, parameter in shown.items() if parameter.required],
        "additionalProperties": False,
    }
    command = _command(name)
    words = (command.help or "").partition("Examples:")[0].strip()
    return Tool(name=name, title=command.short_help or "", words=words, parameters=schema, document=document)


def _name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return str(parameter.name)
    return parameter.opts[0].removeprefix("--").replace("-", "_")


def _schema(parameter: click.Parameter) -> Schema:
    described = {"description": text} if (text := getattr(parameter, "help", None)) else {}
    default = {} if parameter.default in (None, (), "") or parameter.required else {"default": parameter.default}
    kind: Schema = {"type": KINDS.get(parameter.type, "string")}
    return {**({"type": "array", "items": kind} if _several(parameter) else kind), **described, **default}


def _several(parameter: click.Parameter) -> bool:
    return parameter.nargs == -1 or bool(getattr(parameter, "multiple", False))


def _words(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the words that a person would type for the arguments of a tool."""
    known = parameters(name)
    options, positional = ["--json"], []
    for key, value in arguments.items():
        if key == "files" or value is None:
            continue
        if key not in known or key in SHOWN:
            raise bad(key, f"is no parameter of {name}", suggestion(key, (*known, "files")))
        parameter = known[key]
        values = value if isinstance(value, list) else [value]
        if any("\0" in item for item in values if isinstance(item, str)):
            raise bad(key, "has a character of the number 0", "leave it out")
        if (isinstance(value, list) and not _several(parameter)) or any(isinstance(v, list | dict) for v in values):
            raise bad(key, "is of another kind", f"give {_schema(parameter)['type']}")
        if isinstance(parameter, click.Option) and parameter.is_flag:
            if not isinstance(value, bool):
                raise bad(key, f"{value!r:.60} is neither true nor false", "give a boolean")
            options += [*parameter.opts[:1]] if value else [*parameter.secondary_opts[:1]]
        elif isinstance(parameter, click.Option):
            options += [f"{parameter.opts[0]}={_word(parameter, item)}" for item in values]
        else:
            positional += [str(word) for word in values]
    return [*options, "--", *positional]


def _word(parameter: click.Parameter, value: object) -> str:
    """Return a value as a person would type it: to JSON 64.0 is a whole number, too."""
    if parameter.type is click.INT and isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _write(files: object) -> None:
    """Write the files of a request into the folder. Raises SpecError for what is no name within it."""
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise bad("files", "are no texts by name", 'give {"run.sh": "…"}')
    for name, text in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\\" in name:
            raise bad("files", f"{name!r} is no name within the folder of the request", "give a plain name")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")


def _keeper(folder: str) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook (PEP 578) that lets this process write in a folder alone, and read there and in what Python
    and the library are made of."""
    inside = (os.path.realpath(folder),)
    code = {*sysconfig.get_paths().values(), site.getusersitepackages(), *_packages()}
    readable = (*inside, *(os.path.realpath(path) for path in code))

    def keep(event: str, details: tuple[Any, ...]) -> None:
        if event not in ("open", "os.listdir", "os.scandir") or isinstance(details[0], int | None):
            return
        path = os.path.realpath(os.fsdecode(details[0]))
        mode = details[1] if event == "open" else "r"
        writes = bool(details[2] & (os.O_WRONLY | os.O_RDWR)) if event == "open" and mode is None else "r" not in mode
        roots = inside if writes or "+" in (mode or "") else readable
        if path != NULL and not any(path == root or path.startswith(root + os.sep) for root in roots):
            raise PermissionError(errno.EACCES, "is not in the folder of the request: send it in `files`", path)

    return keep


def _packages() -> Iterator[str]:
    """Yield the folders of what is imported, wherever it is installed."""
    yield str(Path(shardwright.__file__).parent)
    for name in ("click", "highspy", "lazy_loader", "numpy", "yaml"):
        if (file := getattr(sys.modules.get(name), "__file__", None)) is not None:
            yield str(Path(file).parent)
