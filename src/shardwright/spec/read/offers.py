"""Reading of offers: a YAML or JSON file, a mapping, or rows of the price table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shardwright.errors import Problem, bad, reject, suggestion
from shardwright.spec.catalog.gpus import find_gpu, resolve_gpu
from shardwright.spec.catalog.machines import machines
from shardwright.spec.catalog.price_rule import typical_price, with_network
from shardwright.spec.catalog.prices import MachinePrice
from shardwright.spec.cluster import Assumption, NodePool
from shardwright.spec.offers import (
    FAILURES_PER_GPU_HOUR,
    MARKETS,
    MOST_GPUS,
    MOST_SPOT_GPUS,
    SPOT_PREEMPTIONS_PER_HOUR,
    Market,
    Offer,
    Offers,
    Terms,
    preemptions_per_hour,
)
from shardwright.spec.read.custom_gpu import reference_machine
from shardwright.spec.read.pool_defaults import network_bytes_per_second
from shardwright.spec.read.pools import MOST_GPUS_PER_NODE, MOST_NODES, POOL_KEYS, read_pool
from shardwright.spec.read.sites import connected, read_site_links
from shardwright.spec.text.fields import Section, shown
from shardwright.spec.text.reading import document
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
    with document(Path(source)) as data:
        return build_offers(data, str(source), prices=prices)


def build_offers(data: object, name: str, *, prices: Sequence[MachinePrice] = ()) -> Offers:
    """Return the offers of a mapping in the form of an offers file; `name` stands for the file in messages.

    An offer is an entry of a cluster file with `market` and `at_most` machines in place of a count. Raises SpecError
    with every problem, a price that nobody knows among them.
    """
    if not isinstance(data, Mapping):
        hint = "start with `offers:` and a list of machines"
        raise bad(name, f"expected a mapping, got {'an empty file' if data is None else shown(data)}", hint)
    root = Section(name, data, [])
    root.reject_unknown(TOP_KEYS)
    if not data.get("offers"):
        root.report("offers", "is missing or empty", "list what can be rented: - {gpu: H100-SXM, price_per_hour: 20}")
    terms = _terms(root)
    offers = [offer for section in root.sections("offers") if (offer := _offer(section, prices)) is not None]
    links = read_site_links(root, {offer.pool.site for offer in offers}) if offers else []
    reject(root.problems)
    return Offers(
        offers=tuple(offers),
        terms=terms,
        site_links=connected(list(dict.fromkeys(offer.pool.site for offer in offers)), links),
        name=root.text("name") or "",
        assumed=tuple(_assumed_terms(root, terms)),
    )


def _terms(root: Section) -> Terms:
    stated = (
        ("failures_per_gpu_hour", root.number("failures_per_gpu_hour", zero=True, most=1.0), 1.0),
        ("checkpoint_bytes_per_second", root.number("checkpoint_gb_per_second", most=1e6), GIGA),
        ("restart_seconds", root.number("restart_minutes", zero=True, most=1e6), 60.0),
    )
    return Terms(**{field: value * unit for field, value, unit in stated if value is not None})


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
        assumed=(*pool.assumed, *_rate_assumed(pool)),
    )


def _rate_assumed(pool: NodePool) -> Iterator[Assumption]:
    if pool.spot and pool.preemptions_per_hour is None:
        words = f"{SPOT_PREEMPTIONS_PER_HOUR:g} a machine and hour (assumed; give preemptions_per_hour)"
        yield Assumption("preemptions", words)


def _pool(
    section: Section, fields: Mapping[str, object], most: int | None, prices: Sequence[MachinePrice]
) -> NodePool | None:
    """Return all machines of an offer; where nobody says how many there are, those with `MOST_GPUS` GPUs."""
    pool = read_pool(Section(section.place, {**fields, "count": most or 1}, section.problems), prices)
    if pool is None or most is not None:
        return pool
    count = max(MOST_GPUS // pool.gpus_per_node, 1)
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


def _assumed_terms(root: Section, terms: Terms) -> Iterator[Assumption]:
    usual = {
        "failures_per_gpu_hour": Assumption(
            "failures",
            f"one in {1.0 / FAILURES_PER_GPU_HOUR:,.0f} GPU hours, as in the training of Llama 3 (arXiv 2407.21783)",
        ),
        "checkpoint_gb_per_second": Assumption(
            "checkpoints",
            f"{terms.checkpoint_bytes_per_second / GIGA:g} GB/s a machine to storage, as in the training of Llama 3",
        ),
        "restart_minutes": Assumption(
            "restart",
            f"{terms.restart_seconds / 60.0:g} minutes after an interruption (MegaScale, arXiv 2402.15627)",
        ),
    }
    return (assumption for name, assumption in usual.items() if name not in root.fields)


def offers_from_prices(
    rows: Sequence[MachinePrice], *, gpus: Sequence[str] = (), most_gpus: int | None = None
) -> Offers:
    """Return offers from rows of a price table: of each GPU type and market one provider's machine, of the usual size
    at the typical price (`price_rule`), the same that `plan` assumes, with the network and the host of that machine
    where these are known. `gpus` narrows the types (names or aliases).

    There are as many machines as hold `most_gpus` GPUs; by default `MOST_GPUS`, on spot `MOST_SPOT_GPUS`; where nobody
    says what network the provider's machines have, one machine. Raises SpecError for an unknown GPU, and where a type
    has no price or no machine of so few GPUs.
    """
    wanted = {resolve_gpu(name, "`gpu=`")[0].name for name in gpus}
    sold = [row for row in rows if row.gpus <= MOST_GPUS_PER_NODE and (not wanted or row.gpu in wanted)]
    rows = sold if most_gpus is None else _no_larger(sold, most_gpus, named=bool(wanted))
    names = list(dict.fromkeys(row.gpu for row in rows))
    problems: list[Problem] = []
    offers = []
    for name in names:
        alike = [row for row in rows if row.gpu == name]
        size = _usual_size(name, alike)
        network = network_bytes_per_second(find_gpu(name), size, None).value
        connected = [row for row in with_network(alike, network) if row.gpus == size]
        for market in MARKETS[:2]:
            spot = market == "spot"
            price = typical_price(connected, size, spot=spot) or typical_price(alike, size, spot=spot)
            if price is None:
                continue
            entry, limits = _entry(price.row, market, size, most_gpus)
            offer = _offer(Section(f"prices: {name}", entry, problems), [price.row])
            if offer is not None:
                words = f"{'spot' if spot else 'on demand'} {price.words}"
                pool = replace(offer.pool, assumed=_with_price(offer.pool.assumed, words))
                offers.append(replace(offer, pool=pool, assumed=(*_with_price(offer.assumed, words), *limits)))
    reject(problems)
    missing = wanted - {offer.pool.gpu.name for offer in offers}
    if missing or not offers:
        words = ", ".join(sorted(missing)) or "these GPUs"
        raise bad("prices", f"the table has no price of {words}", "write an offers file with price_per_hour")
    terms = _assumed_terms(Section("prices", {}, problems), Terms())
    return Offers(offers=tuple(offers), assumed=tuple(terms))


def _no_larger(rows: Sequence[MachinePrice], most_gpus: int, *, named: bool) -> Sequence[MachinePrice]:
    """Return the rows of machines with `most_gpus` GPUs or fewer. Raises SpecError where none has so few, or none of a
    type that was named."""
    small = [row for row in rows if row.gpus <= most_gpus]
    left = {row.gpu for row in small}
    lost = [row for row in rows if row.gpu not in left]
    if lost and (named or not small):
        least = min(lost, key=lambda row: row.gpus)
        message = f"is {most_gpus}, but machines of {least.gpu} on offer have {least.gpus} GPUs or more"
        raise bad("`max_gpus=`", message, f"allow {least.gpus} or more")
    return small


def _with_price(assumed: Sequence[Assumption], words: str) -> tuple[Assumption, ...]:
    """Return assumptions with `words` on the price."""
    return tuple(replace(entry, words=words) if entry.about == "price" else entry for entry in assumed)


def _usual_size(gpu: str, rows: Sequence[MachinePrice]) -> int:
    """Return how many GPUs a machine on offer has: as many as the reference machine, else the most that are sold."""
    usual = reference_machine(find_gpu(gpu)).gpus
    return usual if any(row.gpus == usual for row in rows) else max(row.gpus for row in rows)


def _entry(
    row: MachinePrice, market: Market, size: int, most_gpus: int | None
) -> tuple[Mapping[str, object], Sequence[Assumption]]:
    """Return an entry of an offers file for machines like that of `row`, and what it takes for granted."""
    usual = MOST_SPOT_GPUS if market == "spot" else MOST_GPUS
    most, limits = (most_gpus or usual) // size, []
    known = row.gpus == size and row.machine in machines()
    if row.provider and not known:
        most, limits = 1, [Assumption(f"{market} machines", "one at most, as the network between them is not known")]
    elif market == "spot" and most_gpus is None:
        words = f"at most {most} taken to be free, as nobody publishes how many are (`max_gpus=`)"
        limits = [Assumption(f"{market} machines", words)]
    whose = {"provider": row.provider, "region": row.region} if row.provider else {}
    machine: dict[str, object] = {"machine": row.machine} if known else {"gpu": row.gpu, "gpus": size}
    return {**machine, **whose, "market": market, "at_most": most}, limits


def narrowed(offers: Offers, gpus: Sequence[str], markets: Sequence[str]) -> Offers:
    """Return the offers of some GPU types and markets, all where none is named. Raises SpecError if none is left."""
    wanted = {resolve_gpu(name, "`gpu=`")[0].name for name in gpus}
    kept = [
        offer
        for offer in offers.offers
        if (not wanted or offer.pool.gpu.name in wanted) and (not markets or offer.market in markets)
    ]
    if not kept:
        have = ", ".join(dict.fromkeys(offer.name for offer in offers.offers))
        raise bad("`gpu=`, `market=`", "leave no offer", f"there are {have}")
    return replace(offers, offers=tuple(kept))
