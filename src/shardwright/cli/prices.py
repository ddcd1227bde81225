"""`shardwright prices`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from shardwright.cli import options
from shardwright.cli.output import note, progress, screen_width, write, write_json
from shardwright.commands import option


def prices(
    gpu: Annotated[str | None, option(metavar="GPU", help="Only this GPU, e.g. H100-SXM.")] = None,
    provider: Annotated[str | None, option(metavar="NAME", help="Only this provider, e.g. aws.")] = None,
    region: Annotated[str | None, option(metavar="NAME", help="Only this region, e.g. us-east-1.")] = None,
    refresh: Annotated[
        bool, option("--refresh", help="Fetch today's prices first (needs gpuhunt and a network).")
    ] = False,
    json: options.AsJson = False,
) -> None:
    """List prices of machines in US dollars an hour, on demand and spot, with source and date: those that --refresh
    fetched last, else the dated table that ships.

    Examples:

    \b
      shardwright prices --gpu H100-SXM
      shardwright prices --gpu A100-SXM-80 --provider aws --region us-east-1
      shardwright prices --refresh
    """
    from shardwright.reports.text.catalogue import prices_text
    from shardwright.spec.catalog.prices import table_prices

    if refresh:
        _refresh()
    rows = table_prices(gpu=gpu, provider=provider, region=region)
    if not rows:
        note("the table has no such price; `plan --prices FILE` and `shop --prices FILE` take your own")
    if json:
        write_json([asdict(row) for row in rows])
    else:
        write(prices_text(rows, screen_width()))


def _refresh() -> None:
    """Fetch prices and keep them; say what came of it on standard error."""
    from shardwright.spec.catalog.live_prices import UnreachableError, fetch, keep
    from shardwright.spec.catalog.prices import refreshed_path, table_date

    try:
        with progress("fetching prices"):
            fetched = fetch(datetime.now(UTC).date().isoformat())
    except UnreachableError as error:
        print(f"no fresh prices ({error}); this is {table_date()}", file=sys.stderr)
        return
    keep(fetched.rows, refreshed_path())
    left = f", {fetched.left_out:,} left out (unknown GPUs, implausible prices)" if fetched.left_out else ""
    print(
        f"{len(fetched.rows):,} prices of {fetched.rows[0].price.date}{left}, kept in {refreshed_path()}",
        file=sys.stderr,
    )
