"""The price table in force: what `prices --refresh` fetched last, else the dated table that ships."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shardwright.spec.catalog.price_file import load_prices
from shardwright.spec.catalog.prices import MachinePrice, prices, select_prices


def refreshed_path() -> Path:
    """Return where fetched prices are kept, in the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "shardwright" / "prices.csv"


def table_prices(
    *,
    gpu: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    user_prices: Sequence[MachinePrice] = (),
) -> tuple[MachinePrice, ...]:
    """Return the rows of a GPU, a provider and a region, `user_prices` before those of the table. Raises SpecError for
    what no row has, and for a table of fetched prices that cannot be read."""
    return select_prices([*user_prices, *_table()], gpu=gpu, provider=provider, region=region)


def table_date() -> str:
    """Return in words how old the table in force is."""
    if refreshed_path().exists():
        return f"the table fetched on {max(row.price.date for row in _table())}"
    commits = {row.price.source for row in prices()}
    return f"the table that ships, of {len(commits)} commits of its sources (`date` names each row's)"


def _table() -> tuple[MachinePrice, ...]:
    path = refreshed_path()
    return load_prices(path) if path.exists() else prices()
