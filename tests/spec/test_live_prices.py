"""Fresh prices: how catalogue items are read, kept and listed, and what happens without a network."""

from __future__ import annotations

import csv
import http.server
import io
import json
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.cli.running import refused, run, succeeded

from shardwright.spec.catalog.live_prices import UnreachableError, fetch, from_items, keep
from shardwright.spec.catalog.prices import load_prices, prices, refreshed_path, table_date, table_prices


def item(**changes: Any) -> SimpleNamespace:
    given = {"provider": "aws", "instance_name": "p5.48xlarge", "location": "us-east-1", "price": 60.0, "cpu": 192,
             "memory": 2048.0, "gpu_count": 8, "gpu_name": "H100", "gpu_memory": 80.0, "spot": False}  # fmt: skip
    return SimpleNamespace(**given | changes)


class FakeCatalog:
    items: tuple[SimpleNamespace, ...] = ()
    error: Exception | None = None

    def __init__(self, **_: object) -> None:
        pass

    def load(self) -> None:
        if self.error is not None:
            raise self.error

    def query(self, *, min_gpu_count: int) -> list[SimpleNamespace]:
        return [entry for entry in self.items if entry.gpu_count >= min_gpu_count]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shardwright" / "prices.csv"


@pytest.fixture
def gpuhunt(monkeypatch: pytest.MonkeyPatch) -> type[FakeCatalog]:
    class Catalog(FakeCatalog):
        pass

    module = ModuleType("gpuhunt")
    module.Catalog = Catalog  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuhunt", module)
    return Catalog


def test_on_demand_and_spot_of_a_machine_become_one_row_with_the_cheapest_of_each() -> None:
    found = from_items(
        [item(), item(price=58.0), item(price=20.0, spot=True), item(location="eu-west-1", spot=True, price=25.0)],
        "2030-01-02",
        "a catalogue",
    )
    europe, america = found.rows
    assert (america.price.on_demand_per_hour, america.price.spot_per_hour) == (58.0, 20.0)
    assert (europe.price.on_demand_per_hour, europe.price.spot_per_hour) == (None, 25.0)
    assert (america.gpu, america.gpus, america.price.date) == ("H100-SXM", 8, "2030-01-02")
    assert found.left_out == 0


@pytest.mark.parametrize(
    ("name", "memory", "gpu"),
    [("A100", 40.0, "A100-SXM-40"), ("A100", 80.0, "A100-SXM-80"), ("V100", 16.0, "V100-SXM2-16"), ("H200", 141.0, "H200"),
     ("L4", 24.0, "L4"), ("MI300X", 192.0, "MI300X"), ("B200", 180.0, "B200")],
)  # fmt: skip
def test_gpus_are_told_apart_by_name_and_memory(name: str, memory: float, gpu: str) -> None:
    (row,) = from_items([item(gpu_name=name, gpu_memory=memory)], "2030-01-02", "").rows
    assert row.gpu == gpu


@pytest.mark.parametrize(
    "changes",
    [{"gpu_name": "H999"}, {"gpu_name": None}, {"gpu_memory": 300.0}, {"price": 0.0}, {"price": 0.08}, {"price": 4000.0},
     {"gpu_count": 0}],
)  # fmt: skip
def test_unknown_gpus_and_implausible_prices_are_left_out(changes: dict[str, Any]) -> None:
    found = from_items([item(), item(**changes)], "2030-01-02", "")
    assert (len(found.rows), found.left_out) == (1, 1)


def test_kept_prices_are_read_back_and_become_the_table(cache: Path) -> None:
    found = from_items(
        [item(), item(gpu_name="L4", gpu_memory=24.0, price=8.0, spot=True)], "2030-01-02", "a catalogue"
    )
    keep(found.rows, refreshed_path())
    assert refreshed_path() == cache
    assert load_prices(cache) == found.rows
    assert table_prices() == found.rows
    assert table_prices(gpu="L4")[0].price.spot_per_hour == 8.0
    assert table_date() == "the table fetched on 2030-01-02"
    assert [path.name for path in cache.parent.iterdir()] == ["prices.csv"]


def test_without_a_fetched_table_the_one_that_ships_is_in_force() -> None:
    assert table_prices() == prices()
    assert "the table that ships" in table_date()


def test_refresh_lists_what_it_fetched(gpuhunt: type[FakeCatalog], cache: Path) -> None:
    gpuhunt.items = (item(), item(price=19.0, spot=True), item(gpu_name="odd"))
    outcome = succeeded(["prices", "--refresh", "--json"])
    (row,) = json.loads(outcome.out)
    assert row["price"]["spot_per_hour"] == 19.0
    assert "1 prices of" in outcome.err and "1 left out" in outcome.err and str(cache) in outcome.err


def test_without_a_network_the_dated_table_is_listed_and_named(gpuhunt: type[FakeCatalog], cache: Path) -> None:
    gpuhunt.error = OSError("no route to host")
    outcome = succeeded(["prices", "--refresh", "--gpu", "H100-SXM"])
    assert "no fresh prices (no route to host); this is the table that ships, of 11 commits" in outcome.err
    assert "p5.48xlarge" in outcome.out
    assert not cache.exists()


def test_a_failed_refresh_leaves_the_fetched_table_as_it_was(gpuhunt: type[FakeCatalog], cache: Path) -> None:
    keep(from_items([item()], "2030-01-02", "a catalogue").rows, cache)
    before = cache.read_bytes()
    gpuhunt.items = (item(gpu_name="odd"),)
    outcome = succeeded(["prices", "--refresh"])
    assert "the table fetched on 2030-01-02" in outcome.err
    assert cache.read_bytes() == before


def test_without_gpuhunt_refreshing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    assert "pip install 'shardwright[prices]'" in refused(run(["prices", "--refresh"]))


def test_a_spoilt_table_is_named(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("gpu,gpus\nH100-SXM,8\n")
    assert str(cache) in refused(run(["prices"]))


@pytest.fixture
def catalogue_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve a catalogue of one provider in the form in which gpuhunt's are published."""
    text = io.StringIO()
    names = ("instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot",
             "disk_size", "gpu_vendor", "flags", "cpu_arch", "provider_data")  # fmt: skip
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerow(("p5.48xlarge", "us-east-1", 61.5, 192, 2048, 8, "H100", 80, False, "", "nvidia", "", "x86", "{}"))
    rows = text.getvalue()

    def archive(provider: str) -> bytes:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr(f"{provider}.csv", rows if provider == "aws" else rows.splitlines()[0])
        return packed.getvalue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider, _, rest = self.path.strip("/").partition("/")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"1" if rest == "version" else archive(provider))

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", f"http://127.0.0.1:{server.server_address[1]}")
    yield "2030-01-02"
    server.shutdown()
    server.server_close()
    thread.join()


def test_gpuhunt_itself_is_understood(catalogue_server: str) -> None:
    pytest.importorskip("gpuhunt", reason="gpuhunt is not installed (pip install 'shardwright[prices]')")
    (row,) = fetch(catalogue_server).rows
    assert (row.machine, row.gpu, row.gpus, row.price.on_demand_per_hour) == ("p5.48xlarge", "H100-SXM", 8, 61.5)


def test_an_unreachable_catalogue_is_told_from_an_empty_one(gpuhunt: type[FakeCatalog]) -> None:
    with pytest.raises(UnreachableError, match="no machine with a known GPU"):
        fetch("2030-01-02")
