"""Notices: of clouds' metadata services, imitated, and SIGTERM to a machine of a real run."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.recovery.fleet import Fleet, copies, undisturbed

from shardwright.errors import SpecError
from shardwright.runtime.recovery.keeper.preemption import Notice, ask, service_of

TOKEN = "a-token"


class Metadata(BaseHTTPRequestHandler):
    """Answers as the services of three clouds do: with a notice once `taken` is set."""

    taken = False

    def do_PUT(self) -> None:
        assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
        self._say(200 if self.path == "/latest/api/token" else 404, TOKEN)

    def do_GET(self) -> None:
        taken = type(self).taken
        if self.path == "/latest/meta-data/spot/instance-action":
            if self.headers["X-aws-ec2-metadata-token"] != TOKEN:
                self._say(401, "")
            elif taken:
                time = (datetime.now(UTC) + timedelta(seconds=110)).strftime("%Y-%m-%dT%H:%M:%SZ")
                self._say(200, json.dumps({"action": "terminate", "time": time}))
            else:
                self._say(404, "")
        elif self.path == "/computeMetadata/v1/instance/preempted":
            self._say(200 if self.headers["Metadata-Flavor"] == "Google" else 403, "TRUE" if taken else "FALSE")
        elif self.path == "/metadata/scheduledevents?api-version=2020-07-01" and self.headers["Metadata"] == "true":
            time = format_datetime(datetime.now(UTC) + timedelta(seconds=25), usegmt=True)
            events = [{"EventType": "Freeze", "NotBefore": ""}, {"EventType": "Preempt", "NotBefore": time}]
            self._say(200, json.dumps({"DocumentIncarnation": 1, "Events": events[: 1 + taken]}))
        else:
            self._say(400, "")

    def _say(self, code: int, text: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def served() -> Iterator[tuple[type[Metadata], str]]:
    class Mine(Metadata):
        taken = False

    server = ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Mine, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("cloud", "source", "least", "most"),
    [("aws", "aws: terminate", 100, 110), ("gcp", "gcp: preempted", 30, 30), ("azure", "azure: Preempt", 20, 25)],
)
def test_a_notice_is_understood_with_its_seconds(cloud: str, source: str, least: float, most: float) -> None:
    with served() as (metadata, url):
        service = service_of(f"{cloud}={url}")
        assert ask(service) is None
        metadata.taken = True
        found = ask(service)
        assert isinstance(found, Notice)
        assert found.source == source and least <= found.seconds <= most


def test_clouds_that_are_not_known_are_refused() -> None:
    with pytest.raises(SpecError, match="aws, gcp, azure"):
        service_of("nimbus")


def test_a_machine_that_is_taken_away_hands_over_and_no_step_is_lost(tmp_path: Path) -> None:
    """One of three machines by its cloud's notice, at once after that the coordinator's by SIGTERM: each ends well by
    itself, and the others go on at the step where all were, though each had a part of the optimizer for itself, and
    one is stuck in its communication at the first notice."""
    with served() as (metadata, url), fleet_of_three(tmp_path, "--notices", f"gcp={url}") as fleet:
        fleet.until(lambda: fleet.step(2) >= 10, "steps")
        stuck = fleet.workers(1)
        armed = fleet.arm(1, "stuck")
        fleet.until(lambda: not armed.exists(), "a rank that is stuck")
        for taken in (2, 0):
            before, generation = fleet.step(1), fleet.generation()
            if taken == 2:
                metadata.taken = True
            else:
                fleet.running[0].send_signal(signal.SIGTERM)
            fleet.until(lambda old=generation: fleet.generation() > old, f"a hand-over of machine-{taken}")
            found = next(item for item in fleet.recoveries() if item["generation"] > generation)
            assert "is taken away" in found["cause"] and f"machine-{taken}" not in found["machines"]
            assert found["step"] >= before and sum(found["seconds"].values()) < 30.0
            assert fleet.workers(1) != stuck, "the stuck process gave its state and was replaced"
            assert fleet.running.pop(taken).wait(30.0) == 0
            assert not (fleet.place(taken) / "memory").exists(), "others have what it had"
        fleet.until(lambda: fleet.step(1) > fleet.recoveries()[-1]["step"], "a step alone")
        fleet.running[1].send_signal(signal.SIGTERM)  # the last machine stops with a snapshot
        fleet.finish()
        assert not (fleet.place(1) / "memory").exists(), "the disk has what it had"
        losses = {int(row["step"]): float(row["loss"]) for row in fleet.rows(1)}
    expected = undisturbed(tmp_path / "undisturbed", max(losses))
    assert losses == pytest.approx({step: expected[step] for step in losses}, rel=1e-5)


def fleet_of_three(folder: Path, *last: object) -> Fleet:
    """Three machines that share the optimizer and take no snapshots; `last` are options of the third."""
    return Fleet(folder, copies(3, sharding="zero1"), 400, every=1000, mortal=True, options={2: last})
