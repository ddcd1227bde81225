"""Programs that tests start begin warm: as forks of a process that has PyTorch, which each would take seconds to import.

All else is as it is in a program that is executed: a child of who started it, with the environment, working folder, streams,
session and ignored signals that it was given, and its own end. What such a program starts in turn with the same
interpreter, two ranks or a fork server, is forked from it too, as it was before it had a thread. In network namespaces, and
where a script starts them, programs start cold.
"""

from __future__ import annotations

import _posixsubprocess
import atexit
import ctypes
import fcntl
import gc
import importlib.util
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection, forkserver, process, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from tests import forked

SPARES = 2  # what a program of tests starts: a fork server, or two ranks; more of them start cold
HIGH, MOST_PASSED, LONGEST_MESSAGE = 100, 32, 1 << 20
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36  # linux/prctl.h
SERVER = "from multiprocessing.forkserver import main"
KEPT = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGKILL, signal.SIGSTOP)  # an interpreter ignores the first two itself

MAIN = process.current_process()  # where the server imports this, as it is preloaded: one that has no parent

executed: Callable[..., int] = _posixsubprocess.fork_exec


@dataclass(frozen=True)
class Program:
    """A program of this interpreter. `streams` are the descriptors of standard input, output and error, -1 for those
    that it inherits; `limit` is called before it starts."""

    words: Sequence[str]
    folder: str | None
    environment: Mapping[str, str]
    streams: Sequence[int]
    session: bool
    limit: Callable[[], object] | None
    ignored: frozenset[int] = field(
        default_factory=lambda: frozenset(
            number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN
        )
    )

    def begin(self, *, spares: bool = False) -> NoReturn:
        """Be this program, in a process that was just forked, and end with it."""
        code = 1
        try:
            gc.freeze()  # what was open in the process before is closed, and nobody may close it again
            self._settle()
            if spares:
                _start_with(Spares().start)
            code = _status(self._run)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _settle(self) -> None:
        if self.session:
            os.setsid()
        for number, stream in enumerate(self.streams):
            if stream >= 0:
                os.dup2(stream, number)
        if self.folder is not None:
            os.chdir(self.folder)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - set(KEPT):
            signal.signal(number, signal.SIG_IGN if number in self.ignored else signal.SIG_DFL)
        if signal.SIGINT not in self.ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(self.environment)
        if self.limit is not None:
            self.limit()
        whole = "PYTHONUNBUFFERED" in self.environment
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, errors="backslashreplace")  # noqa: SIM115
        sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=whole)
        sys.stderr.reconfigure(line_buffering=True)
        _forget_processes()
        if "RANK" in self.environment:
            ctypes.CDLL(None).prctl(PR_SET_NAME, b"RANK=" + os.fsencode(self.environment["RANK"]))
        if "OMP_NUM_THREADS" in self.environment:
            sys.modules["torch"].set_num_threads(int(self.environment["OMP_NUM_THREADS"]))

    def _run(self) -> None:
        _customize(self.environment.get("PYTHONPATH", ""))
        kind, *sys.argv = self.words
        if kind == "-c":
            exec(sys.argv[0], {"__name__": "__main__"})
        else:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


@contextmanager
def programs() -> Iterator[None]:
    """Have what is started here with the interpreter of the tests begin warm."""
    forked.context()
    _start_with(_from_the_server)
    try:
        yield
    finally:
        _start_with(executed)


def _start_with(start: Callable[..., int]) -> None:
    _posixsubprocess.fork_exec = start
    subprocess._fork_exec = start  # type: ignore[attr-defined]


def _program(arguments: Sequence[Any]) -> Program | None:
    """Return the program that arguments of `_posixsubprocess.fork_exec` ask for, None for one that starts cold."""
    words = [os.fsdecode(word) for word in arguments[0]]
    python, *words = words
    unbuffered = {"PYTHONUNBUFFERED": "1"} if words[:1] == ["-u"] else {}
    words = words[1:] if words[:1] in (["-B"], ["-u"]) else words
    ours = words[:1] == ["-m"] or (words[:1] == ["-c"] and words[1].startswith(SERVER))
    if python != sys.executable or not ours:
        return None
    pairs = [os.fsdecode(pair).partition("=") for pair in arguments[5] or ()]
    return Program(
        words=words,
        folder=None if arguments[4] is None else os.fsdecode(arguments[4]),
        environment=unbuffered | ({name: value for name, _, value in pairs} if pairs else dict(os.environ)),
        streams=[arguments[6], arguments[9], arguments[11]],
        session=bool(arguments[15]),
        limit=arguments[21],
    )


def _from_the_server(*arguments: Any) -> int:
    """Stand for `_posixsubprocess.fork_exec` in the tests: the program is forked from the server, and yet a child."""
    program = _program(arguments)
    if program is None:
        return executed(*arguments)
    streams = [Connection(os.dup(number if stream < 0 else stream)) for number, stream in enumerate(program.streams)]
    ours, theirs = connection.Pipe(duplex=False)
    between = forked.context().Process(target=_between, args=(program, streams, theirs))
    with _orphans_are_ours():
        between.start()
        for item in (*streams, theirs):
            item.close()
        pid = int(ours.recv())
        between.join()  # the program has lost its parent, and is ours
    ours.close()
    return pid


def _between(program: Program, streams: Sequence[Connection], asked: Connection) -> None:
    """Fork a program from this process, which tells its number and ends."""
    pid = os.fork()
    if pid == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream.fileno(), number)
        _close_all_but({0, 1, 2})
        replace(program, streams=()).begin(spares=True)
    asked.send(pid)


class Spares:
    """Processes forked from a program before it starts a thread, which wait for what it starts: these are its children."""

    def __init__(self) -> None:
        self.free: list[tuple[int, socket.socket]] = []
        for _ in range(SPARES):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                _close_all_but({0, 1, 2, theirs.fileno()})
                _become(theirs)
            theirs.close()
            self.free.append((pid, ours))

    def start(self, *arguments: Any) -> int:
        """Stand for `_posixsubprocess.fork_exec` in the program."""
        program = _program(arguments)
        if program is None or not self.free:
            return executed(*arguments)
        pid, ours = self.free.pop()
        passed = {number: stream for number, stream in enumerate(program.streams) if stream >= 0}
        passed |= {number: number for number in arguments[3] if number != arguments[13]}
        message = pickle.dumps((replace(program, streams=()), list(passed)))
        socket.send_fds(ours, [message], list(passed.values()))
        ours.close()
        return pid


def _become(asked: socket.socket) -> NoReturn:
    """Wait for a program, and be it; end where nobody can ask for one any more."""
    message, given, _, _ = socket.recv_fds(asked, LONGEST_MESSAGE, MOST_PASSED)
    if not message:
        os._exit(0)
    program, numbers = pickle.loads(message)
    high = [fcntl.fcntl(number, fcntl.F_DUPFD, HIGH) for number in given]
    _close_all_but({0, 1, 2, *high})
    for number, copy in zip(numbers, high, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    program.begin()


def _close_all_but(kept: Set[int]) -> None:
    for number in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        with suppress(OSError):  # that of the list itself
            os.close(number)


@contextmanager
def _orphans_are_ours() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _forget_processes() -> None:
    """Have `multiprocessing` know of no parent, child or server: a program has none yet."""
    every: Any = (process, forkserver, resource_tracker)
    every[0]._current_process, every[0]._parent_process = MAIN, None
    every[0]._children = set()
    every[1]._forkserver.__init__()
    every[2]._resource_tracker.__init__()


def _customize(path: str) -> None:
    """Find modules as `PYTHONPATH` says, and do what a `sitecustomize` of its folders does."""
    folders = [Path(item) for item in path.split(os.pathsep) if item]
    sys.path[:0] = [str(folder) for folder in folders if str(folder) not in sys.path]
    for file in [folder / "sitecustomize.py" for folder in folders]:
        spec = importlib.util.spec_from_file_location("sitecustomize", file)
        if file.exists() and spec is not None and spec.loader is not None:
            spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _status(run: Callable[[], None]) -> int:
    """Run a program to its end, as an interpreter would, and return its exit status."""
    code = 0
    try:
        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    ending: Any = (threading, atexit)
    ending[0]._shutdown()
    ending[1]._run_exitfuncs()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = 120
    return code
