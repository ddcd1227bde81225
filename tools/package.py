"""`python -m tools.package`: builds the wheel and the sdist, checks them, and tries the wheel as users install it.

    python -m tools.package                              # into dist/package; all interpreters at hand, pipx and uv
    python -m tools.package --try dist/package/*.whl     # this interpreter alone, with a wheel that is there

Each interpreter gets an environment of its own with the wheel and what planning needs, and no PyTorch. The extra
`package` brings `build`, `twine`, `pipx` and `uv`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
OUT = ROOT / "dist" / "package"
MINORS = (11, 12, 13, 14)
QUESTION = "--model gpt2 --cluster 1x2xL4 --global-batch 8 --seq-len 128"
# A command as a user types it after the installation, its exit code, and words that it must print.
COMMANDS = (
    ("--help", 0, "Commands:"),
    ("--version --json", 0, '"torch": null'),
    (f"plan {QUESTION} --out plan.json", 0, "proved"),
    ("check plan.json", 0, "legal"),
    ("export plan.json --to megatron -o run.sh", 0, ""),
    ("report plan.json -o report.html", 0, ""),
    ("fit gpt2 --gpu L4 --json", 0, '"fits": true'),
    ("shop --model gpt2 --gpu L4 --max-gpus 2 --mixes 0 --tokens 1B", 0, "dollars"),
    ("prices --gpu H100-SXM", 0, "commit"),
    ("train plan.json --data corpus.bin", 2, "training needs PyTorch"),
)


def main(arguments: list[str]) -> None:
    """Build, check and try; with `--try WHEEL` only that."""
    if arguments[:1] == ["--try"]:
        tried(Path(sys.executable), Path(arguments[1]))
        return
    shutil.rmtree(OUT, ignore_errors=True)
    _run([sys.executable, "-m", "build", "--outdir", OUT, ROOT])
    (wheel,), (sdist,) = OUT.glob("*.whl"), OUT.glob("*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist])
    with zipfile.ZipFile(wheel) as archive, tarfile.open(sdist) as tar:
        wrong = [*strays(archive.namelist(), _package()), *lacking(tar.getnames())]
    if wrong:
        sys.exit("error: " + "\n  ".join(wrong))
    for python in interpreters():
        tried(python, wheel)
    for tool in ("pipx", "uv"):
        tried_as_a_tool(tool, wheel)
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) and {sdist.name} ({sdist.stat().st_size / 1e6:.1f} MB)")


def strays(names: Iterable[str], package: set[str]) -> list[str]:
    """Return what a wheel with the files `names` has beyond those of `package` and its metadata, and what it lacks."""
    kept = {name for name in names if not name.partition("/")[0].endswith(".dist-info")} - {"shardwright/commit.txt"}
    beyond = [f"the wheel has {name}" for name in sorted(kept - package)]
    return beyond + [f"the wheel lacks {name}" for name in sorted(package - kept)]


def lacking(names: Iterable[str]) -> list[str]:
    """Return what an sdist with the files `names` lacks of what it takes to build and to test from it."""
    inner = {name.partition("/")[2] for name in names}
    needed = ("README.md", "LICENSE", "PKG-INFO", "pyproject.toml", "hatch_build.py", "tests/test_packaging.py")
    return [f"the sdist lacks {name}" for name in needed if name not in inner]


def _package() -> set[str]:
    """Return the files of the package that are under version control."""
    listed = subprocess.run(["git", "-C", ROOT / "src", "ls-files"], capture_output=True, text=True, check=True).stdout
    return set(listed.splitlines())


def interpreters() -> Iterator[Path]:
    """Yield a Python of each minor version at hand, on `PATH` or of pyenv; name those that are not."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    folders = [*map(Path, os.get_exec_path()), *sorted(pyenv.glob("3.*/bin"), reverse=True)]
    for minor in MINORS:
        paths = (folder / f"python3.{minor}" for folder in folders)
        python = next((path for path in paths if path.is_file() and _starts(path)), None)
        if python is None:
            print(f"Python 3.{minor} is not at hand")
        else:
            yield python


def _starts(python: Path) -> bool:
    """Whether an interpreter runs: a shim of pyenv may stand for one that is not chosen."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def tried(python: Path, wheel: Path) -> None:
    """Install a wheel into a bare environment of `python` and run the commands there."""
    with tempfile.TemporaryDirectory() as folder:
        _run([python, "-m", "venv", folder])
        scripts = Path(folder, "Scripts" if os.name == "nt" else "bin")
        _run([scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel.resolve()])
        versions = answers([scripts / "shardwright"], Path(folder))
        print(f"Python {versions['python']} on {versions['platform']}: {len(COMMANDS)} commands answer as they should")


def tried_as_a_tool(tool: str, wheel: Path) -> None:
    """Install a wheel with `pipx install` or `uv tool install` into a folder of its own, and run it."""
    program = shutil.which(tool, path=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]))
    assert program is not None, f"{tool} belongs to the extra `package`"
    install = ["install", "--python", sys.executable] if tool == "pipx" else ["tool", "install", "-p", sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        places = {"PIPX_HOME": f"{folder}/home", "PIPX_BIN_DIR": f"{folder}/bin"}
        places |= {"UV_TOOL_DIR": f"{folder}/home", "UV_TOOL_BIN_DIR": f"{folder}/bin"}
        _run([program, *install, wheel.resolve()], places)
        shown = _run([Path(folder, "bin", "shardwright"), "--version"]).strip()
        print(f"{tool}: {shown}")


def answers(program: list[str | Path], folder: Path) -> dict[str, object]:
    """Run the commands of `COMMANDS` in `folder`; return what `--version --json` says, or raise at the first that does
    not answer as it should."""
    versions: dict[str, object] = {}
    for command, code, words in COMMANDS:
        line = [*program, *command.split()]
        done = subprocess.run(line, capture_output=True, text=True, cwd=folder, env=_environment(), check=False)
        if done.returncode != code or words not in done.stdout + done.stderr or "Traceback" in done.stderr:
            shown = done.stdout[-2000:] + done.stderr[-2000:]
            sys.exit(f"error: shardwright {command}: exit {done.returncode}\n{shown}")
        if command.startswith("--version"):
            versions = json.loads(done.stdout)
    return versions


def _environment() -> dict[str, str]:
    """Return the variables of this process, but for one that would put a checkout before what is installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _run(command: list[str | Path], variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a program, with more variables, and return what it prints; end with that where it fails."""
    environment = _environment() | dict(variables)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False
    )
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, command))}\n{done.stdout[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
