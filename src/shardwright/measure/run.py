"""The run of all measurements: what is still to do, what is kept at an interruption, and the profile at the end.

After every row the profile so far lies in `FILE.partial` beside the output. A later call goes on from there, with the
same settings, so that it measures the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from shardwright.errors import bad
from shardwright.measure.collectives import measured
from shardwright.measure.device import MeasuredDevice, custom_device, find_device, sustained
from shardwright.measure.operators import (
    CALLS,
    ShapeSettings,
    collective_rows,
    float32_products,
    operator_rows,
    row_count,
)
from shardwright.records import record
from shardwright.spec.read.machine_profile import (
    CollectiveTime,
    MachineProfile,
    OperatorTime,
    load_profile,
    save_profile,
)

PROBE_SECONDS, PROBE_SIZE = 0.3, {"cuda": 8192, "cpu": 512}
SHORTEST_ROW_SECONDS = 2e-3
# How PyTorch says that it cannot run something: most kernels with the first, checks of arguments with the others.
CANNOT_RUN = (RuntimeError, ValueError, TypeError, AttributeError)
Row = OperatorTime | CollectiveTime


@record
class MeasureProgress:
    """`done` of `total` rows are measured; `row` is the last of them. If it cannot be measured, it has no seconds, and
    `problem` says why."""

    done: int
    total: int
    row: Row
    problem: str = ""


def partial_path(out: Path) -> Path:
    """Return the file that holds what an interrupted run measured."""
    return out.with_name(out.name + ".partial")


def profile(
    out: Path | str,
    *,
    device: str | None = None,
    gpu: str | None = None,
    minutes: float = 3.0,
    links: bool = True,
    restart: bool = False,
    date: str = "",
    report: Callable[[MeasureProgress], None] = lambda _: None,
) -> MachineProfile:
    """Return the profile of this machine's `device` ("cuda" or "cpu"; the GPU if there is one), as `measure` does.

    `gpu` is its name in the catalogue, or what to call one that it does not have. Raises SpecError where PyTorch or the
    device is missing.
    """
    machine = find_device(device, gpu)
    return measure(
        machine, Path(out), name=gpu, minutes=minutes, links=links, restart=restart, date=date, report=report
    )


def measure(
    device: MeasuredDevice,
    out: Path,
    *,
    name: str | None = None,
    minutes: float = 3.0,
    links: bool = True,
    restart: bool = False,
    date: str = "",
    report: Callable[[MeasureProgress], None] = lambda _: None,
) -> MachineProfile:
    """Return the profile of `device` after writing it to `out`, in about `minutes`.

    `name` is what to call a device that the catalogue does not have. `links` False leaves out the collectives,
    `restart` forgets what an interrupted run left. Raises SpecError where that was another machine's, or `out` cannot
    be written.
    """
    partial = partial_path(out)
    profile = None if restart or not partial.exists() else _continued(load_profile(partial), device, partial)
    if profile is None:
        row_seconds = max(60.0 * minutes / row_count(device), SHORTEST_ROW_SECONDS)
        profile = _empty(device, row_seconds, name, date)
    save_profile(profile, partial)
    settings = ShapeSettings(row_seconds=profile.row_seconds, flops_per_second=profile.flops_per_second)
    rows = operator_rows(device, settings)
    exchanges = collective_rows(device, settings) if links else ()
    missing = _missing((*rows, *exchanges), (*profile.operators, *profile.collectives))
    total = len(rows) + len(exchanges)
    with closing(_measured(missing, device, settings.row_seconds)) as results:
        for done, (row, problem) in enumerate(results, start=total - len(missing) + 1):
            if not problem:
                profile = _with(profile, row)
                save_profile(profile, partial)
            report(MeasureProgress(done=done, total=total, row=row, problem=problem))
    gpu = device.gpu or custom_device(device, profile, name or profile.gpu.name)
    profile = replace(profile, complete=True, gpu=gpu)
    save_profile(profile, out)
    with suppress(FileNotFoundError):
        partial.unlink()
    return profile


def _empty(device: MeasuredDevice, row_seconds: float, name: str | None, date: str) -> MachineProfile:
    """Return a profile without rows, with the settings that the device's speed suggests."""
    profile = MachineProfile(
        gpu=device.gpu or custom_device(device, None, name or device.name),  # until its peaks are measured
        device=device.name,
        backend=device.backend,
        count=device.count,
        threads=device.threads,
        memory_bytes=device.memory_bytes,
        operators=(),
        collectives=(),
        torch=device.torch,
        cuda=device.cuda,
        driver=device.driver,
        date=date,
        row_seconds=row_seconds,
        complete=False,
    )
    size = PROBE_SIZE[device.backend]
    row = OperatorTime(
        kind="gemm", direction="forward", dtype=device.dtypes[0], seconds=0.0, m=size, n=size, k=size, groups=1
    )
    timed, problem = _timed(row, device, min(PROBE_SECONDS, 10 * row_seconds))
    if problem:
        remedy = "see whether other programs fill its memory, and whether this PyTorch is made for it"
        raise bad("profile", f"{device.name} cannot multiply matrices in {row.dtype}: {problem}", remedy)
    return replace(profile, flops_per_second=2.0 * size**3 / timed.seconds)


def _continued(profile: MachineProfile, device: MeasuredDevice, path: Path) -> MachineProfile:
    """Return what an interrupted run left, if it was of this device and these versions."""
    for what, before, now in (
        ("device", profile.device, device.name),
        ("number of devices", profile.count, device.count),
        ("PyTorch", profile.torch, device.torch),
    ):
        if before != now:
            message = f"was begun with another {what} ({before}, now {now})"
            raise bad(str(path), message, "begin anew with `restart=True`, or name another file")
    return profile


def _missing(rows: Sequence[Row], done: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that are not among those done."""
    without_times = {replace(row, seconds=0.0, spread=0.0) for row in done}
    return tuple(row for row in rows if row not in without_times)


def _with(profile: MachineProfile, row: Row) -> MachineProfile:
    if isinstance(row, OperatorTime):
        return replace(profile, operators=(*profile.operators, row))
    return replace(profile, collectives=(*profile.collectives, row))


def _measured(rows: tuple[Row, ...], device: MeasuredDevice, row_seconds: float) -> Generator[tuple[Row, str]]:
    """Yield the rows with their times as they come; those that the device or its PyTorch cannot run, without, and with
    what is wrong."""
    for row in rows:
        if isinstance(row, OperatorTime):
            yield _timed(row, device, row_seconds)
    for exchange in measured([row for row in rows if isinstance(row, CollectiveTime)], device, row_seconds):
        yield exchange, ""


def _timed(row: OperatorTime, device: MeasuredDevice, row_seconds: float) -> tuple[OperatorTime, str]:
    """Return the row with its time, or as it is with what is wrong: no such kernel or precision, too little memory."""
    import torch

    if device.threads is not None:
        torch.set_num_threads(device.threads)
    try:
        with float32_products(row.dtype):
            result = sustained(CALLS[row.kind](row, device), device, row_seconds)
    except CANNOT_RUN as error:
        return row, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return replace(row, seconds=result.seconds, spread=result.spread), ""
