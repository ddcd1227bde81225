"""A run whose machines were all lost is started again with its object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import ENDLESS, Fleet, copies


@pytest.mark.nightly
def test_a_run_that_is_started_again_in_its_store_goes_on_and_outlives_further_losses(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its generations have numbers of their own: a minority is not held up by what was claimed before."""
    store = tmp_path_factory.mktemp("store")
    with Fleet(tmp_path, copies(), ENDLESS, every=5, extra=["--upload", f"file://{store}"]) as fleet:
        fleet.until(lambda: fleet.step() >= 10, "steps")
        fleet.lose(1)
        fleet.until(lambda: fleet.generation() > 1, "a claim to follow generation 1")
        fleet.until(lambda: bool(list(store.glob("step-*/manifest.json"))), "a step in the store")
        stored = max(int(path.parent.name.removeprefix("step-")) for path in store.glob("step-*/manifest.json"))
        for index in (0, 2):
            fleet.lose(index)
        before = fleet.generation()
        for index in range(fleet.count):
            fleet.start(index)
        fleet.until(lambda: fleet.generation() > before, "all machines again")
        again = fleet.recoveries()[-1]
        assert len(again["machines"]) == 3 and again["step"] >= stored
        fleet.until(lambda: fleet.step() >= again["step"] + 5, "steps")
        for index in (1, 2):
            fleet.lose(index)
        fleet.until(lambda: fleet.recoveries()[-1]["machines"] == ["machine-0"], "the machine that is left")
        assert fleet.recoveries()[-1]["step"] >= again["step"]
