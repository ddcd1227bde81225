"""The device guard: compiled once for each build of PyTorch, kept in the user's cache, and loaded before PyTorch; and
what the process of a rehearsal refuses, in the words that the command prints.

Nothing here imports PyTorch, whose hooks are made when it is first imported.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

PINNED = "2.13"  # the release whose private names this package uses
TRANSFORMERS = "pip install 'transformers>=5'"
TORCHTITAN = "tests/targets/targets.sh makes an environment of torchtitan 0.3.0; name its interpreter with `python=`"
IMPORTED = {"fsdp": ("transformers", TRANSFORMERS), "torchtitan": ("torchtitan", TORCHTITAN)}
COMPILE_SECONDS = 300
SOURCE = Path(__file__).parent / "guard.cpp"
LIBRARIES = ("libc10.so", "libtorch_cpu.so")


class Refused(Exception):  # noqa: N818
    """Something is missing or cannot be rehearsed: its name, what is wrong with it, and the remedy."""

    def __init__(self, path: str, message: str, hint: str) -> None:
        super().__init__(f"{path}: {message} ({hint})")
        self.path, self.message, self.hint = path, message, hint


def require(package: str, hint: str) -> None:
    """Raise Refused where a package that a trainer imports is missing."""
    if importlib.util.find_spec(package) is None:
        raise Refused(package, "is not installed where the trainer is to run", hint)


def load_guard() -> str:
    """Make fake tensors on `cuda` possible in this process, and return what makes them. Raises Refused without PyTorch,
    with another release of it, or without a compiler."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise Refused("PyTorch", "is not installed where the trainer is to run", f"pip install 'torch=={PINNED}.*'")
    root = Path(spec.submodule_search_locations[0])
    version, cuda = build_of((root / "version.py").read_text(encoding="utf-8"))
    if not version.startswith(f"{PINNED}."):
        hint = f"pip install 'torch=={PINNED}.*', or name an interpreter that has it with `python=`"
        raise Refused("PyTorch", f"is {version}; a rehearsal replaces private parts of {PINNED}", hint)
    if cuda is not None:
        return f"PyTorch {version} (CUDA build)"
    library = _compiled(root, version)
    for name in LIBRARIES:
        ctypes.CDLL(str(root / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return f"PyTorch {version} with a compiled guard of {SOURCE.name}"


def build_of(text: str) -> tuple[str, str | None]:
    """Return the version in the text of torch/version.py, and that of CUDA where it was built with it."""
    version = re.search(r"__version__ = '([^']*)'", text)
    cuda = re.search(r"^cuda: .*= '([^']*)'", text, re.MULTILINE)
    return version[1] if version else "unknown", cuda[1] if cuda else None


def compiler() -> list[str]:
    """Return the command of the C++ compiler: that of CXX, else the first there is. Raises Refused without one."""
    command = shlex.split(os.environ.get("CXX", ""))
    if command and shutil.which(command[0]):
        return command
    usual = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if command or usual is None:
        what = f"CXX names {command[0]}, which is not there" if command else "there is none"
        hint = "apt-get install g++ (or set CXX); with a CUDA build of PyTorch none is needed"
        raise Refused("C++ compiler", what, hint)
    return [usual]


def cache_folder() -> Path:
    """Return the folder of compiled guards, which is the user's alone."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(root) / "shardwright" / "guards"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Refused(
            str(folder), f"cannot be made: {error.strerror}", "set XDG_CACHE_HOME to a folder of yours"
        ) from None
    if folder.stat().st_uid != os.getuid():
        raise Refused(str(folder), "belongs to somebody else", "set XDG_CACHE_HOME to a folder of yours")
    return folder


def _compiled(root: Path, version: str) -> Path:
    """Return the compiled guard of a build of PyTorch, from the cache if it is there."""
    source = SOURCE.read_bytes()
    key = hashlib.sha256(b"\0".join((source, version.encode(), str(root).encode()))).hexdigest()[:16]
    folder = cache_folder()
    library = folder / f"guard-{key}.so"
    if library.is_file():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "guard.so"
        command = [
            *compiler(),
            "-shared",
            "-fPIC",
            "-O1",
            "-std=c++20",
            f"-I{root / 'include'}",
            str(SOURCE),
            "-o",
            str(made),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(
                "C++ compiler", f"{command[0]} did not finish: {error}", "set CXX to another compiler"
            ) from None
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
            raise Refused(
                "C++ compiler",
                f"{command[0]} cannot compile the guard: {first}",
                "it needs C++20: g++ 11, clang 14 or newer",
            )
        made.replace(library)
    return library
