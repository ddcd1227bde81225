"""What a machine costs where nobody says: the one rule that every command follows.

Of the machines of the wanted size, each provider has one vote, the lower median of its regions; the price is the lower
median of the votes, which is what one provider asks for one machine. A few dear regions of one provider, or its many
rows, then decide nothing. A spot price that is no lower than the price on demand is a list's way to say that there is
none, and has no vote. Those machines alone count whose network is known to be like what they are taken to
have (`with_network`): who sells a GPU cheaper without the network does not sell the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.records import record
from shardwright.rows import grouped
from shardwright.spec.catalog.machines import machines
from shardwright.spec.catalog.prices import MachinePrice


@record
class TypicalPrice:
    """US dollars an hour for one machine, the row that it is the price of, and the least and most that a provider asks,
    each with the provider's name."""

    dollars: float
    row: MachinePrice
    providers: int
    least: tuple[float, str]
    most: tuple[float, str]

    @property
    def seller(self) -> str:
        """The provider, its machine and the region."""
        return " ".join(word for word in (self.row.provider, self.row.machine, self.row.region) if word)

    @property
    def words(self) -> str:
        """The price with its spread, origin and date."""
        origin = f"{self.seller}, {self.row.price.date}"
        if self.providers == 1:
            return f"${self.dollars:.2f} a machine and hour ({origin})"
        ends = " to ".join(f"${dollars:.2f} ({provider})" for dollars, provider in (self.least, self.most))
        return f"${self.dollars:.2f} a machine and hour, the median of {self.providers} providers, {ends} ({origin})"


def typical_price(rows: Sequence[MachinePrice], gpus_per_node: int, *, spot: bool = False) -> TypicalPrice | None:
    """Return what machines of `gpus_per_node` GPUs typically cost among `rows`, all of one GPU type; None if no row has
    such a price. Where no machine has that size, machines of other sizes count by the GPU."""
    priced = [(dollars, row) for row in rows if (dollars := _dollars(row, spot=spot)) is not None]
    priced = [(dollars, row) for dollars, row in priced if row.gpus == gpus_per_node] or [
        (dollars / row.gpus * gpus_per_node, row) for dollars, row in priced
    ]
    if not priced:
        return None
    of_provider = grouped((row.provider, (dollars, row)) for dollars, row in priced)
    votes = sorted((_lower_median(provider_prices) for provider_prices in of_provider.values()), key=_order)
    dollars, row = _lower_median(votes)
    least, most = votes[0], votes[-1]
    return TypicalPrice(
        dollars=dollars,
        row=row,
        providers=len(votes),
        least=(least[0], least[1].provider),
        most=(most[0], most[1].provider),
    )


LIKE = 0.5  # part of a network's bandwidth that machines must reach to be like those that have it; chosen


def with_network(rows: Sequence[MachinePrice], bytes_per_second: float) -> Sequence[MachinePrice]:
    """Return the rows of machines whose network is known to be like one of so many bytes per second a machine."""

    def reached(row: MachinePrice) -> float:
        machine = machines().get(row.machine)
        return (machine.network_bytes_per_second or 0.0) if machine else 0.0

    return [row for row in rows if reached(row) >= LIKE * bytes_per_second]


def _dollars(row: MachinePrice, *, spot: bool) -> float | None:
    demand, taken_back = row.price.on_demand_per_hour, row.price.spot_per_hour
    if not spot:
        return demand
    return None if taken_back is not None and demand is not None and taken_back >= demand else taken_back


def _order(offer: tuple[float, MachinePrice]) -> tuple[float, str, str, str]:
    dollars, row = offer
    return dollars, row.provider, row.region, row.machine


def _lower_median(offers: Sequence[tuple[float, MachinePrice]]) -> tuple[float, MachinePrice]:
    return sorted(offers, key=_order)[(len(offers) - 1) // 2]
