"""`shardwright simulate-spot`: a plan on machines that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.output import write, write_json
from shardwright.commands import given, option
from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.plans.plan import Plan
    from shardwright.recovery.simulation.traces import Trace

LEAST_DAYS, MOST_DAYS, MOST_ZONES = 0.01, 3650, 1000


def simulate_spot(
    plan: options.PlanFile,
    trace: Annotated[
        Path | None, option(metavar="TRACE.csv", help="Which machines could be had when, and their price.")
    ] = None,
    market: Annotated[
        str, option(metavar="NAME", help="Make a trace instead: calm, batches (by zone) or capped (at 24 h).")
    ] = "",
    days: Annotated[float, option(metavar="N", help="Days of a trace that is made.")] = 7.0,
    zones: Annotated[int, option(metavar="N", help="Zones of a trace that is made.")] = 4,
    seed: Annotated[int, option(metavar="N", help="Seed of a trace that is made, and of which machines go.")] = 0,
    save_trace: Annotated[Path | None, option(metavar="FILE", help="Write the trace that was made here.")] = None,
    out: Annotated[Path | None, option("--out", "-o", metavar="FILE.svg", help="Write a picture here.")] = None,
    json: options.AsJson = False,
) -> int:
    """Replay over a plan which spot machines were there and what they cost: useful tokens, dollars, hours lost
    to each cause. The code of `train --elastic` decides what to do about losses. Beside
    it stand reloading everything from the cloud, restarts without a new plan, and machines on demand.

    \b
      shardwright simulate-spot plan.json --trace trace.csv -o spot.svg
      shardwright simulate-spot plan.json --market batches --days 7 --seed 1 --json
      shardwright simulate-spot plan.json --market capped --save-trace trace.csv

    A trace has the columns seconds,zone,gpu,machines,dollars_per_machine_hour: from then on, so many machines could be
    had.
    """
    from shardwright.errors import reject
    from shardwright.plans.check import check
    from shardwright.plans.document import load_plan
    from shardwright.recovery.simulation.replay import simulate
    from shardwright.recovery.simulation.traces import read_trace, write_trace
    from shardwright.reports.spot import spot_document, spot_text
    from shardwright.reports.svg.spot import picture

    if seed < 0:
        raise bad(f"--seed {seed}", "is below 0", "give 0 or more")
    require_writable(out, [plan, trace], json=json)
    require_writable(save_trace, [plan, trace], option="--save-trace")
    if (trace is None) == (not market):
        raise bad("--trace", "give either a trace or --market", "--market batches makes one")
    for name in ("days", "zones", "save_trace") if trace is not None else ():
        if name in given():
            flag = f"--{name.replace('_', '-')}"
            raise bad(flag, "is of a trace that is made, and --trace names one that is there", f"leave {flag} out")
    loaded = load_plan(plan)
    reject(check(loaded))
    events = read_trace(trace) if trace is not None else _made(loaded, market, days=days, zones=zones, seed=seed)
    if save_trace is not None:
        write_trace(save_trace, events)
    outcomes = simulate(events, loaded, seed=seed)
    if out is not None:
        deliver(picture(events, outcomes), out)
    if json:
        write_json(spot_document(events, outcomes))
    else:
        write(spot_text(events, outcomes))
    return 0


def _made(plan: Plan, market: str, *, days: float, zones: int, seed: int) -> Trace:
    from shardwright.recovery.simulation.traces import MARKETS, generate_for

    kinds = {item.name: item for item in MARKETS}
    if market not in kinds:
        raise bad(f"--market {market}", "is not known", f"one of {', '.join(kinds)}")
    if not (LEAST_DAYS <= days <= MOST_DAYS and 0 < zones <= MOST_ZONES):
        message = f"must be from {LEAST_DAYS:g} to {MOST_DAYS} days and 1 to {MOST_ZONES} zones"
        raise bad("--days, --zones", message, "for example --days 7 --zones 4")
    return generate_for(plan, kinds[market], days=days, zones=zones, seed=seed)
