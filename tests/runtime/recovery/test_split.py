"""Two groups of machines that cannot see each other, and no object store that says who may go on: both do, and come
together again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import ENDLESS, GENTLY, Fleet, copies, undisturbed
from tests.runtime.recovery.network import network

MACHINES = 3


@pytest.mark.nightly
@pytest.mark.parametrize("alone", [0, 2])
def test_two_groups_that_went_on_apart_come_together_again(tmp_path: Path, alone: int) -> None:
    """They go on at the later of their steps: which group's it was changes no loss."""
    name, extra = f"machine-{alone}", ["--wait", 6, *GENTLY]
    with (
        network(MACHINES) as wires,
        Fleet(tmp_path, copies(MACHINES), ENDLESS, silence=3.0, extra=extra, network=wires) as fleet,
    ):
        fleet.until(lambda: fleet.step() > 5, "steps")

        def groups() -> set[tuple[str, ...]]:
            return {tuple(sorted(one["machines"])) for one in fleet.recoveries()}

        everyone = tuple(f"machine-{index}" for index in range(MACHINES))
        others = tuple(other for other in everyone if other != name)
        wires.cut(alone)
        fleet.until(lambda: groups() >= {(name,), others}, "two groups")
        apart = fleet.step(alone), fleet.step((alone + 1) % MACHINES)
        fleet.until(lambda: fleet.step(alone) > apart[0] + 5, "steps of the one")
        fleet.until(lambda: fleet.step((alone + 1) % MACHINES) > apart[1] + 5, "steps of the others")
        reached, generation = max(fleet.step(index) for index in range(MACHINES)), fleet.generation()
        wires.mend(alone)
        fleet.until(lambda: fleet.generation() > generation, "one group again")
        again = fleet.recoveries()[-1]
        assert tuple(sorted(again["machines"])) == everyone
        assert again["step"] >= reached
        fleet.until(lambda: fleet.step() > again["step"] + 5, "steps of all")
        fleet.stop()
        found = [{int(row["step"]): float(row["loss"]) for row in fleet.rows(index)} for index in range(MACHINES)]
    expected = undisturbed(tmp_path / "undisturbed", max(max(rows) for rows in found), extra=GENTLY)
    for rows in found:
        assert rows == pytest.approx({step: expected[step] for step in rows}, rel=1e-5)
