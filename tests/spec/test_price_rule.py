"""What a machine costs where nobody says: one vote a provider, the same in `plan` and `shop`, dated and with its spread."""

from __future__ import annotations

from itertools import groupby
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.running import answered

from shardwright.spec.catalog.machines import machines
from shardwright.spec.catalog.price_rule import typical_price
from shardwright.spec.catalog.prices import MachinePrice, prices
from shardwright.spec.cluster import NodePool, Price
from shardwright.spec.read.cluster import build_cluster, load_cluster
from shardwright.spec.read.offers import offers_from_prices


def row(provider: str, dollars: float, gpus: int = 8, spot: float | None = None) -> MachinePrice:
    price = Price(on_demand_per_hour=dollars, spot_per_hour=spot, source="list", date="2030-01-01")
    return MachinePrice(provider=provider, region="r", machine="m", gpu="H100-SXM", gpus=gpus, price=price)


ROWS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 40)), min_size=1, max_size=20)


@given(ROWS)
def test_the_price_is_the_median_of_the_providers_medians(offers: list[tuple[str, int]]) -> None:
    found = typical_price([row(provider, dollars) for provider, dollars in offers], 8)
    ordered = sorted(offers)
    votes = [median_low(d for _, d in same) for _, same in groupby(ordered, key=lambda offer: offer[0])]
    assert found is not None
    assert found.dollars == median_low(votes) == found.row.price.on_demand_per_hour
    assert (found.providers, found.least[0], found.most[0]) == (len(votes), min(votes), max(votes))


def test_many_rows_of_one_provider_have_one_vote() -> None:
    rows = [*(row("dear", 90.0 + place) for place in range(50)), row("a", 20.0), row("b", 30.0)]
    found = typical_price(rows, 8)
    assert found is not None and found.dollars == 30.0


def test_machines_of_the_size_go_before_others_by_the_gpu() -> None:
    one, eight = row("a", 3.0, gpus=1), row("b", 40.0)
    assert typical_price([one, eight], 8).dollars == 40.0  # type: ignore[union-attr]
    assert typical_price([one], 8).dollars == 24.0  # type: ignore[union-attr]
    assert typical_price([], 8) is None


def test_a_spot_price_without_discount_has_no_vote() -> None:
    assert typical_price([row("a", 40.0, spot=40.0)], 8, spot=True) is None
    assert typical_price([row("a", 40.0, spot=40.0), row("b", 40.0, spot=9.0)], 8, spot=True).dollars == 9.0  # type: ignore[union-attr]


def test_an_h100_costs_less_than_the_dearest_half_of_its_providers_ask() -> None:
    found = typical_price(prices(gpu="H100"), 8)
    assert found is not None and found.dollars / 8 < 4.0
    assert found.providers == 8 and "hyperstack" in found.words and "gcp" in found.words and "commit" in found.words


@pytest.mark.parametrize("gpu", ["H100-SXM", "A100-SXM-80", "A100-SXM-40", "H200", "B200"])
def test_plan_and_shop_take_the_same_price_for_the_same_machines(gpu: str) -> None:
    pool = load_cluster(f"2x8x{gpu}").pools[0]
    offer = offers_from_prices(prices(), gpus=[gpu]).offers[0]
    assert offer.market == "on-demand"
    assert pool.gpus_per_node == offer.pool.gpus_per_node
    assert pool.dollars_per_node_hour == offer.dollars_per_hour
    assert [assumed for assumed in pool.assumed if assumed.about == "price"] == [
        assumed for assumed in offer.pool.assumed if assumed.about == "price"
    ]


def test_plan_and_shop_ask_the_same_dollars_for_the_same_run() -> None:
    job = ["--model", "llama-3.2-1b", "--tokens", "1B", "--global-batch", "64", "--seq-len", "2048", "--json"]
    planned = answered(["plan", "--cluster", "1x8xH100-SXM", *job])["plans"][0]
    options = ["--gpu", "H100", "--max-gpus", "8", "--market", "on-demand"]
    (choice,) = answered(["shop", *options, *job])["front"]
    assert choice["rent"][0]["dollars_per_machine_hour"] == planned["prediction"]["dollars_per_hour"]
    assert choice["plan"]["prediction"]["dollars_total"] == pytest.approx(planned["prediction"]["dollars_total"])


def test_every_price_says_when_it_was() -> None:
    assert all("commit" in found.price.date or found.price.date[:2] == "20" for found in prices())
    assert not any("undated" in found.price.date for found in prices())


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_price_is_of_machines_that_have_the_network(nodes: int) -> None:
    """InfiniBand is priced in: who sells H100s on Ethernet does not count, and an A100 machine costs less."""
    h100, a100 = (load_cluster(f"{nodes}x8x{gpu}").pools[0] for gpu in ("H100-SXM", "A100-SXM-80"))
    assert h100.dollars_per_node_hour is not None and a100.dollars_per_node_hour is not None
    assert a100.dollars_per_node_hour < h100.dollars_per_node_hour
    for pool in (h100, a100):
        assert pool.price is not None
        provider, machine, _ = pool.price.seller.split()
        assert machines()[machine].provider == provider
        assert (machines()[machine].network_bytes_per_second or 0.0) >= pool.inter_bytes_per_second / 2
        theirs = [row for row in prices(gpu=pool.gpu.name, provider=provider) if row.machine == machine]
        assert pool.dollars_per_node_hour in [row.price.on_demand_per_hour for row in theirs]


def test_both_markets_of_a_price_are_of_one_provider() -> None:
    for gpu in ("H100-SXM", "A100-SXM-40", "H200", "B200"):
        for spot in (False, True):
            pool = load_cluster_of(gpu, spot=spot)
            assert pool.price is not None
            rows = prices(gpu=gpu, provider=pool.price.seller.split()[0])
            asked = {row.price.on_demand_per_hour for row in rows} | {row.price.spot_per_hour for row in rows} | {None}
            assert {pool.price.on_demand_per_hour, pool.price.spot_per_hour} <= asked


def load_cluster_of(gpu: str, *, spot: bool) -> NodePool:
    return build_cluster({"nodes": [{"gpu": gpu, "count": 2, "gpus": 8, "spot": spot}]}, "machines").pools[0]


def test_an_offer_of_the_table_has_the_network_of_its_machine() -> None:
    for offer in offers_from_prices(prices()).offers:
        name = offer.pool.price.seller.split()[1] if offer.pool.price and offer.provider else ""
        if name in machines() and machines()[name].gpus == offer.pool.gpus_per_node:
            assert offer.pool.inter_bytes_per_second == machines()[name].network_bytes_per_second
            assert offer.pool.host_memory_bytes == machines()[name].host_memory_bytes
        else:
            assert offer.pool.nodes == 1, "a network that nobody knows joins no machines"
