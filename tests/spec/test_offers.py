"""Offers: what a file says, what the price table says, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import SpecError
from shardwright.spec.catalog.price_rule import typical_price, with_network
from shardwright.spec.catalog.prices import prices
from shardwright.spec.offers import FAILURES_PER_GPU_HOUR, Offer, Offers, Terms
from shardwright.spec.read.cluster import build_cluster, load_cluster
from shardwright.spec.read.offers import OFFER_KEYS, build_offers, load_offers, narrowed, offers_from_prices

FILE = """
name: autumn
checkpoint_gb_per_second: 4
restart_minutes: 3
failures_per_gpu_hour: 0
offers:
  - {gpu: H100-SXM, gpus: 8, price_per_hour: 20, at_most: 16, region: east}
  - {gpu: H100-SXM, gpus: 8, market: spot, price_per_hour: 9, preemptions_per_hour: 0.02}
  - {machine: p4d.24xlarge, market: reserved, price_per_hour: 12, at_most: 4, site: west}
site_links:
  - {between: [west, west2], gbps: 10}
"""


def one(**entry: Any) -> Offer:
    return build_offers({"offers": [{"gpu": "H100-SXM", "gpus": 8, "price_per_hour": 20} | entry]}, "o.yaml").offers[0]


def problems(data: object) -> list[str]:
    with pytest.raises(SpecError) as caught:
        build_offers(data, "o.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_a_file_says_what_can_be_rented_and_on_which_terms(tmp_path: Path) -> None:
    path = tmp_path / "o.yaml"
    path.write_text(
        FILE.replace("west2", "far").replace("site: west}", "site: west}\n  - {gpu: L40S, gpus: 4, site: far}")
    )
    found = load_offers(path)
    on_demand, spot, reserved, _ = found.offers
    assert found.name == "autumn"
    assert found.terms == Terms(failures_per_gpu_hour=0.0, checkpoint_bytes_per_second=4e9, restart_seconds=180.0)
    assert (on_demand.pool.nodes, on_demand.dollars_per_hour, on_demand.preemptions_per_hour) == (16, 20.0, 0.0)
    assert (spot.market, spot.dollars_per_hour, spot.preemptions_per_hour, spot.pool.spot) == ("spot", 9.0, 0.02, True)
    assert (reserved.market, reserved.dollars_per_hour, reserved.place) == ("reserved", 12.0, "west")
    assert found.site_links[0].bytes_per_second == 1.25e9


def test_what_nobody_states_is_assumed_and_said() -> None:
    found = build_offers({"offers": [{"gpu": "H100-SXM", "market": "spot", "price_per_hour": 9}]}, "o.yaml")
    offer = found.offers[0]
    assert offer.pool.gpus == 1024
    assert offer.preemptions_per_hour == 0.01
    assert found.terms.failures_per_gpu_hour == FAILURES_PER_GPU_HOUR
    words = " ".join(map(str, (*offer.assumed, *found.assumed)))
    for said in (
        "preemptions: 0.01 a machine",
        "failures: one in 50,677 GPU hours",
        "1 GB/s a machine",
        "restart: 10 minutes",
    ):
        assert said in words


def test_a_price_that_is_not_stated_comes_from_the_table() -> None:
    known = build_offers({"offers": [{"machine": "p5.48xlarge", "region": "us-east-1"}]}, "o.yaml").offers[0]
    assert (
        known.dollars_per_hour == prices(gpu="H100-SXM", provider="aws", region="us-east-1")[0].price.on_demand_per_hour
    )


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"gpu": "A800-SXM-80"}, "o.yaml: offers[0].price_per_hour: is missing, and no price table has A800-SXM-80"),
        ({"gpu": "H100-SXM", "market": "reserved"}, "offers[0].price_per_hour: is missing"),
        ({"gpu": "H100-SXM", "inter_node_gbps": 0}, "offers[0].inter_node_gbps: must be more than zero, got 0"),
        ({"gpu": "H100-SXM", "market": "auction"}, "unknown market 'auction'"),
        ({"gpu": "H100-SXM", "count": 3}, "offers[0].count: unknown key"),
        ({"gpu": "H100-SXM", "at_most": 0}, "offers[0].at_most: must be more than zero"),
        ({"gpu": "H100-SXM", "preemptions_per_hour": 0.1}, "machines on-demand are not taken back"),
        ({"gpu": "H100-SXM", "price_per_hour": 4000}, "is not plausible"),
        ({"gpu": "H101"}, "unknown GPU"),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_place(entry: dict[str, Any], words: str) -> None:
    (problem,) = problems({"offers": [entry]})
    assert words in problem


def test_sites_that_no_machines_stand_at_and_links_without_bandwidth_are_refused() -> None:
    offer = {"gpu": "H100-SXM", "price_per_hour": 20, "site": "east"}
    (unknown,) = problems({"offers": [offer], "site_links": [{"between": ["east", "moon"], "gbps": 10}]})
    assert "no group of machines is at site 'moon'" in unknown
    both = [offer, offer | {"site": "west"}]
    (dead,) = problems({"offers": both, "site_links": [{"between": ["east", "west"], "gbps": 0}]})
    assert "must be more than zero" in dead


@pytest.mark.parametrize("data", [None, [], {"offers": []}, {"offers": 3}, {"offers": [3]}, {}])
def test_files_without_offers_are_refused(data: object) -> None:
    assert problems(data)


def test_of_the_price_table_each_gpu_and_market_has_the_typical_price_of_its_machines() -> None:
    found = offers_from_prices(prices(), gpus=["H100", "A100-40"], most_gpus=64)
    assert {(offer.pool.gpu.name, offer.market) for offer in found.offers} == {
        (gpu, market) for gpu in ("H100-SXM", "A100-SXM-40") for market in ("on-demand", "spot")
    }
    for offer in found.offers:
        alike = [row for row in prices(gpu=offer.pool.gpu.name) if row.gpus == offer.pool.gpus_per_node]
        network = load_cluster(f"1x8x{offer.pool.gpu.name}").pools[0].inter_bytes_per_second
        typical = typical_price(with_network(alike, network), offer.pool.gpus_per_node, spot=offer.market == "spot")
        assert typical is not None and offer.dollars_per_hour == typical.dollars
        assert offer.pool.gpus <= 64
        assert offer.pool.price is not None and offer.pool.price.source != "user"


@given(most=st.integers(1, 40), names=st.lists(st.sampled_from(sorted({row.gpu for row in prices()})), max_size=2))
def test_no_offer_has_more_gpus_than_are_asked_for(most: int, names: list[str]) -> None:
    try:
        found = offers_from_prices(prices(), gpus=names, most_gpus=most)
    except SpecError as error:
        sizes = [min(row.gpus for row in prices(gpu=name)) for name in names]
        assert "max_gpus" in str(error) and max(sizes) > most, str(error)
        return
    assert all(0 < offer.pool.gpus <= most for offer in found.offers)
    assert set(names) <= {offer.pool.gpu.name for offer in found.offers}


def test_spot_machines_are_not_taken_to_be_free_without_end() -> None:
    usual, asked = (offers_from_prices(prices(), gpus=["H100"], most_gpus=most) for most in (None, 512))
    assert [offer.pool.gpus for offer in usual.offers] == [1024, 64]
    assert any("spot machines: at most 8" in str(assumed) for assumed in usual.offers[1].assumed)
    assert [offer.pool.gpus for offer in asked.offers] == [512, 512]


def test_machines_of_one_provider_whose_network_nobody_knows_are_offered_singly() -> None:
    known, unknown = (offers_from_prices(prices(provider=name), gpus=["H100"]) for name in ("nebius", "hyperstack"))
    assert {offer.pool.nodes for offer in known.offers} == {128, 8}
    assert {offer.pool.nodes for offer in unknown.offers} == {1}
    assert all("one at most" in str(offer.assumed[-1]) for offer in unknown.offers)


def test_a_gpu_without_a_price_in_the_table_is_named() -> None:
    with pytest.raises(SpecError, match="no price of A800-SXM-80"):
        offers_from_prices(prices(), gpus=["A800-SXM-80"])


def test_narrowing_leaves_something_or_says_what_there_is() -> None:
    given = build_offers({"offers": [{"gpu": "H100-SXM", "price_per_hour": 20}]}, "o.yaml")
    assert narrowed(given, [], []) == given
    assert isinstance(narrowed(given, ["H100"], ["on-demand"]), Offers)
    with pytest.raises(SpecError, match="there are H100-SXM on-demand"):
        narrowed(given, [], ["spot"])


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2000),
    st.floats(allow_nan=True),
    st.sampled_from(["H100-SXM", "spot", "reserved", "p5.48xlarge", "aws", "us-east-1", "", "x", "A800-SXM-80"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(st.lists(st.dictionaries(st.sampled_from(OFFER_KEYS), VALUES, max_size=6), max_size=3), VALUES, VALUES)
@settings(deadline=None)
def test_any_file_is_read_or_refused_in_words(entries: list[dict[str, object]], restart: object, links: object) -> None:
    data = {"offers": entries, "restart_minutes": restart, "site_links": links}
    try:
        found = build_offers(data, "o.yaml")
    except SpecError as error:
        assert all(str(problem).startswith("o.yaml") for problem in error.problems)
    else:
        assert all(offer.dollars_per_hour >= 0.0 and offer.pool.nodes > 0 for offer in found.offers)


def test_fast_links_join_no_more_machines_than_are_rented() -> None:
    offer = one(gpu="GB200", gpus=4, at_most=40)
    assert offer.pool.domain_gpus == 72
    assert [offer.pool.resized(machines).domain_gpus for machines in (1, 2, 18, 19)] == [4, 8, 72, 72]


@pytest.mark.parametrize(
    ("nodes", "domains"),
    [("1x4xGB200", [4, 8, 72, 72]), ("2x4xGB200", [4, 8, 72, 72]), ("1x4xH100-SXM", [4, 4, 4, 4])],
)
def test_more_machines_are_joined_as_far_as_fast_links_reach(nodes: str, domains: list[int]) -> None:
    (pool,) = load_cluster(nodes).pools
    assert [pool.resized(machines).domain_gpus for machines in (1, 2, 18, 19)] == domains
    for machines in (1, 2, 18, 19):
        _, _, machine = nodes.partition("x")
        assert pool.resized(machines).domain_gpus == load_cluster(f"{machines}x{machine}").pools[0].domain_gpus


def test_more_machines_are_joined_no_further_than_stated() -> None:
    nodes = [{"count": 2, "gpu": "GB200", "gpus": 4, "domain_gpus": 4}]
    assert build_cluster({"nodes": nodes}, "c").pools[0].resized(18).domain_gpus == 4
