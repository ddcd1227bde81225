"""`Offers`: machines that one could rent, on which terms, and what a run on them must expect to go wrong."""

from __future__ import annotations

from typing import Literal

from shardwright.records import record
from shardwright.spec.cluster import Assumption, NodePool, SiteLink

Market = Literal["on-demand", "spot", "reserved"]
MARKETS: tuple[Market, ...] = ("on-demand", "spot", "reserved")
MOST_GPUS = 1024  # of one offer, where nobody says how many machines can be had
MOST_SPOT_GPUS = 64  # of one spot offer: no provider publishes how many machines are free

# 419 unexpected interruptions in 54 days on 16,384 H100 (Llama 3, arXiv 2407.21783, §3.3.4).
FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16384)
# Tectonic's sustained 2 TB/s for the same 2,048 machines of 8 (ibidem, §3.3.1).
CHECKPOINT_BYTES_PER_SECOND = 1e9
# Detection, diagnosis and restart take less than ten minutes on average (MegaScale, arXiv 2402.15627, §4).
RESTART_SECONDS = 600.0
# Providers publish no rate for machines of several GPUs: one reclaimed machine in a hundred hours is assumed.
SPOT_PREEMPTIONS_PER_HOUR = 0.01


def preemptions_per_hour(pool: NodePool) -> float:
    """Return how often one machine of a pool is taken back: the stated rate, else an assumed one where it is spot."""
    if pool.preemptions_per_hour is not None:
        return pool.preemptions_per_hour
    return SPOT_PREEMPTIONS_PER_HOUR if pool.spot else 0.0


@record
class Offer:
    """Equal machines on one market. `pool` is all of them that can be had, with their price; `preemptions_per_hour` is
    how often the provider takes one machine back, 0 but for spot; `assumed` what nobody stated of it."""

    pool: NodePool
    market: Market
    preemptions_per_hour: float = 0.0
    provider: str = ""
    region: str = ""
    assumed: tuple[Assumption, ...] = ()

    @property
    def dollars_per_hour(self) -> float:
        """The price of one machine."""
        price = self.pool.dollars_per_node_hour
        assert price is not None, "an offer has a price"
        return price

    @property
    def place(self) -> str:
        """Where the machines stand: what stands at one place is joined by its network."""
        return self.pool.site or " ".join(word for word in (self.provider, self.region) if word)

    @property
    def name(self) -> str:
        """GPU type, market and place, as shown to the user."""
        return " ".join(word for word in (self.pool.gpu.name, self.market, self.provider, self.region) if word)


@record
class Terms:
    """What holds for a run on any offer: failures of hardware and software, the bandwidth with which one machine
    writes and reads checkpoints, and the seconds from an interruption until the checkpoint is read again."""

    failures_per_gpu_hour: float = FAILURES_PER_GPU_HOUR
    checkpoint_bytes_per_second: float = CHECKPOINT_BYTES_PER_SECOND
    restart_seconds: float = RESTART_SECONDS


@record
class Offers:
    """Everything that can be rented; `assumed` is what nobody stated of the terms."""

    offers: tuple[Offer, ...]
    terms: Terms = Terms()
    site_links: tuple[SiteLink, ...] = ()
    name: str = ""
    assumed: tuple[Assumption, ...] = ()
