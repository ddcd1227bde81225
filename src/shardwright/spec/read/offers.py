"""Reading of offers: a YAML or JSON file, a mapping, or rows of the price table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shardwright.errors import Problem, SpecError, bad, suggestion
from shardwright.spec.catalog.catalog import MachinePrice, machines, resolve_gpu
from shardwright.spec.cluster import NodePool
from shardwright.spec.offers import (
    FAILURES_PER_GPU_HOUR,
    MARKETS,
    MOST_GPUS,
    SPOT_PREEMPTIONS_PER_HOUR,
    Market,
    Offer,
    Offers,
    Terms,
    preemptions_per_hour,
)
from shardwright.spec.read.cluster import (
    MOST_GPUS_PER_NODE,
    MOST_NODES,
    POOL_KEYS,
    read_pool,
    read_site_links,
)
from shardwright.spec.read.sites import connected
from shardwright.spec.text.fields import Section, shown
from shardwright.spec.text.reading import parse_json, parse_yaml, read_text
from shardwright.units import GIGA

TOP_KEYS = (
    "name",
    "offers",
    "site_links",
    "failures_per_gpu_hour",
    "checkpoint_gb_per_second",
    "restart_minutes",
)
OWN_KEYS = ("market", "at_most")
OFFER_KEYS = (*OWN_KEYS, *(key for key in POOL_KEYS if key not in ("count", "spot", "spot_price_per_hour")))


def load_offers(source: str | Path, *, prices: Sequence[MachinePrice] = ()) -> Offers:
    """Return the offers of a YAML or JSON file. `prices` are the user's own, which go before the catalogue's.

    Raises SpecError with every problem of the file.
    """
    path = Path(source)
    parse = parse_json if path.suffix.casefold() == ".json" else parse_yaml
    return build_offers(parse(read_text(path), str(path)), str(path), prices=prices)


def build_offers(data: object, name: str, *, prices: Sequence[MachinePrice] = ()) -> Offers:
    """Return the offers of a mapping in the form of an offers file; `name` stands for the file in messages.

    An offer is an entry of a cluster file with `market` and `at_most` machines in place of a count. Raises SpecError
    with every problem, a price that nobody knows among them.
    """
    if not isinstance(data, Mapping):
        hint = "start with `offers:` and a list of machines"
        raise bad(name, f"expected a mapping, got {'an empty file' if data is None else shown(data)}", hint)
    problems: list[Problem] = []
    root = Section(name, data, problems)
    root.reject_unknown(TOP_KEYS)
    if not data.get("offers"):
        root.report("offers", "is missing or empty", "list what can be rented: - {gpu: H100-SXM, price_per_hour: 20}")
    terms = _terms(root)
    found = [offer for section in root.sections("offers") if (offer := _offer(section, prices)) is not None]
    links = read_site_links(root, {offer.pool.site for offer in found}) if found else []
    if problems:
        raise SpecError(*problems)
    return Offers(
        offers=tuple(found),
        terms=terms,
        site_links=connected(list(dict.fromkeys(offer.pool.site for offer in found)), links),
        name=root.text("name") or "",
        assumed=tuple(dict.fromkeys([*_assumed(found), *_assumed_terms(root, terms)])),
    )


def _terms(root: Section) -> Terms:
    failures = root.number("failures_per_gpu_hour", zero=True, most=1.0)
    bandwidth = root.number("checkpoint_gb_per_second", most=1e6)
    restart = root.number("restart_minutes", zero=True, most=1e6)
    stated: dict[str, float] = {}
    if failures is not None:
        stated["failures_per_gpu_hour"] = failures
    if bandwidth is not None:
        stated["checkpoint_bytes_per_second"] = bandwidth * GIGA
    if restart is not None:
        stated["restart_seconds"] = restart * 60.0
    return Terms(**stated)


def _offer(section: Section, prices: Sequence[MachinePrice]) -> Offer | None:
    """Return an entry of `offers`, or None after adding its problems."""
    before = len(section.problems)
    section.reject_unknown(OFFER_KEYS)
    market = _market(section)
    most = section.integer("at_most", most=MOST_NODES)
    if section.fields.get("preemptions_per_hour") and market != "spot":
        section.report("preemptions_per_hour", f"machines {market} are not taken back", "write market: spot")
    fields = {key: value for key, value in section.fields.items() if key in POOL_KEYS}
    if market == "spot" and "price_per_hour" in fields:
        fields["spot_price_per_hour"] = fields.pop("price_per_hour")
    if market == "reserved":
        section.require("price_per_hour", "the price table has no reserved prices: say what the machine costs an hour")
    if len(section.problems) > before:
        return None
    pool = _pool(section, {**fields, "spot": market == "spot"}, most, prices)
    if pool is None:
        return None
    if pool.dollars_per_node_hour is None:
        message = f"is missing, and no price table has {pool.gpu.name} {market}"
        section.report("price_per_hour", message, "say what the machine costs an hour in US dollars")
        return None
    return Offer(
        pool=pool,
        market=market,
        preemptions_per_hour=preemptions_per_hour(pool),
        provider=section.text("provider") or "",
        region=section.text("region") or "",
    )


def _pool(
    section: Section, fields: Mapping[str, object], most: int | None, prices: Sequence[MachinePrice]
) -> NodePool | None:
    """Return all machines of an offer; where nobody says how many there are, those with `MOST_GPUS` GPUs."""
    one = read_pool(Section(section.place, {**fields, "count": most or 1}, section.problems), prices)
    if one is None or most is not None:
        return one
    count = max(MOST_GPUS // one.gpus_per_node, 1)
    return read_pool(Section(section.place, {**fields, "count": count}, section.problems), prices)


def _market(section: Section) -> Market:
    word = section.text("market")
    if word is None:
        return "on-demand"
    for market in MARKETS:
        if word.replace("_", "-").casefold() == market:
            return market
    section.report("market", f"unknown market {shown(word)}", suggestion(word, MARKETS))
    return "on-demand"


def _assumed(offers: Sequence[Offer]) -> Iterator[str]:
    for offer in offers:
        yield from (f"{offer.pool.gpu.name}: {words}" for words in offer.pool.assumed)
        if offer.market == "spot" and offer.pool.preemptions_per_hour is None:
            yield (
                f"{offer.pool.gpu.name} spot: {SPOT_PREEMPTIONS_PER_HOUR:g} preemptions a machine and hour (assumed; "
                "give preemptions_per_hour)"
            )


def _assumed_terms(root: Section, terms: Terms) -> Iterator[str]:
    if "failures_per_gpu_hour" not in root.fields:
        yield (
            f"failures: one in {1.0 / FAILURES_PER_GPU_HOUR:,.0f} GPU hours, as in the training of Llama 3 "
            "(arXiv 2407.21783)"
        )
    if "checkpoint_gb_per_second" not in root.fields:
        speed = terms.checkpoint_bytes_per_second / GIGA
        yield f"checkpoints: {speed:g} GB/s a machine to storage, as in the training of Llama 3"
    if "restart_minutes" not in root.fields:
        yield f"restart: {terms.restart_seconds / 60.0:g} minutes after an interruption (MegaScale, arXiv 2402.15627)"


def offers_from_prices(rows: Sequence[MachinePrice], *, gpus: Sequence[str] = (), most_gpus: int = MOST_GPUS) -> Offers:
    """Return offers from rows of a price table: of each GPU type and market the cheapest machine for the GPU among
    those with the most GPUs. `gpus` narrows the types (names or aliases).

    Raises SpecError for an unknown GPU, and where a type has no price.
    """
    wanted = {resolve_gpu(name, "--gpu")[0].name for name in gpus}
    names = [name for name in dict.fromkeys(row.gpu for row in rows) if not wanted or name in wanted]
    problems: list[Problem] = []
    found = []
    for name in names:
        for market in MARKETS[:2]:
            row = _cheapest([row for row in rows if row.gpu == name], market)
            if row is not None:
                section = Section(f"prices: {name}", _entry(row, market, most_gpus), problems)
                found.append(_offer(section, (row,)))
    offers = [offer for offer in found if offer is not None]
    if problems:
        raise SpecError(*problems)
    missing = wanted - {offer.pool.gpu.name for offer in offers}
    if missing or not offers:
        words = ", ".join(sorted(missing)) or "these GPUs"
        raise bad("prices", f"the table has no price of {words}", "write an offers file with price_per_hour")
    terms = _assumed_terms(Section("prices", {}, problems), Terms())
    return Offers(offers=tuple(offers), assumed=tuple(dict.fromkeys([*_assumed(offers), *terms])))


def _cheapest(rows: Sequence[MachinePrice], market: Market) -> MachinePrice | None:
    """Return the cheapest machine for the GPU among those with the most GPUs, or None without a price."""
    priced = [
        (dollars / row.gpus, row.provider, row.region, row.machine, row)
        for row in rows
        if row.gpus <= MOST_GPUS_PER_NODE and (dollars := _dollars(row, market)) is not None
    ]
    largest = max((row.gpus for *_, row in priced), default=0)
    among = [entry for entry in priced if entry[-1].gpus == largest]
    return min(among, key=lambda entry: entry[:-1])[-1] if among else None


def _dollars(row: MachinePrice, market: Market) -> float | None:
    return row.price.spot_per_hour if market == "spot" else row.price.on_demand_per_hour


def _entry(row: MachinePrice, market: Market, most_gpus: int) -> Mapping[str, object]:
    """Return a row as an entry of an offers file. A machine type that only the price table knows goes by its GPUs."""
    known = {"machine": row.machine} if row.machine in machines() else {"gpu": row.gpu, "gpus": row.gpus}
    place = {key: value for key, value in (("provider", row.provider), ("region", row.region)) if value}
    return {**known, **place, "market": market, "at_most": max(most_gpus // row.gpus, 1)}


def narrowed(offers: Offers, gpus: Sequence[str], markets: Sequence[str]) -> Offers:
    """Return the offers of some GPU types and markets, all where none is named. Raises SpecError if none is left."""
    wanted = {resolve_gpu(name, "--gpu")[0].name for name in gpus}
    kept = [
        offer
        for offer in offers.offers
        if (not wanted or offer.pool.gpu.name in wanted) and (not markets or offer.market in markets)
    ]
    if not kept:
        have = ", ".join(dict.fromkeys(offer.name for offer in offers.offers))
        raise bad("--gpu, --market", "leave no offer", f"there are {have}")
    return replace(offers, offers=tuple(kept))
