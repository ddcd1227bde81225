"""Writes docs/spot-figures.md and docs/spot.svg: seven simulated days of spot machines, in three markets.

.venv/bin/python docs/make_spot_figures.py
"""

from __future__ import annotations

from pathlib import Path

import shardwright
from shardwright.files import write_atomically
from shardwright.recovery.simulation.replay import simulate
from shardwright.recovery.simulation.traces import MARKETS, generate_for
from shardwright.reports.spot import spot_text
from shardwright.reports.svg.spot import picture

PAGE = Path(__file__).with_name("spot-figures.md")
DAYS, ZONES, SEED = 7.0, 4, 1
INTRODUCTION = """<!-- Written by docs/make_spot_figures.py -->

# Spot machines, simulated

Llama-2-70B on 16 machines of 8 A100, over seven days on spot machines, in three markets: `calm`, `batches` (about a
tenth of the machines lost an hour, most of a zone at once, as Bamboo reports of EC2), and `capped` (lifetimes in the
shape of a bathtub with a cap of 24 h, as Google's preemptible machines had). The sources are in
`recovery/simulation/traces.py`. Any of it again:

    shardwright plan --model llama-2-70b --cluster 16x8xA100-SXM-80 --global-batch 512 --seq-len 4096 --out plan.json
    shardwright simulate-spot plan.json --market batches --seed 1 -o spot.svg

*Local first* decides as `train --elastic` does, by the same function, and reads what survives from memory. *Reload from
the cloud* makes a new plan at every change, too, and reads all state from the object store, as Varuna does. *Restart
without a new plan* waits until as many machines are there again. An hour of useful work is one at the first plan's
speed; what a smaller plan trains less counts as fewer machines.

What is assumed: machines boot in 3 minutes, a machine reads 0.25 GB/s from the object store, copies 8 GB/s in its
memory and sends as the cluster says; groups are formed again in 10 s, a restart takes 33 s (torchrun's defaults);
snapshots are taken at Daly's interval; an upload has the work of when it began, and counts once it is whole. The link
between zones is taken to be that within one.

![Machines, tokens a second and hours by cause in the market of batches](spot.svg)
"""


def main() -> None:
    """Write the page and the picture."""
    model, cluster = shardwright.load_model("llama-2-70b"), shardwright.load_cluster("16x8xA100-SXM-80")
    plan = shardwright.plan(model, cluster, shardwright.make_job(global_batch=512, seq_len=4096)).best
    parts = [INTRODUCTION]
    for market in MARKETS:
        trace = generate_for(plan, market, days=DAYS, zones=ZONES, seed=SEED)
        outcomes = simulate(trace, plan, seed=SEED)
        parts.append(f"\n## {market.name}\n\n```text\n{spot_text(trace, outcomes)}\n```\n")
        if market.name == "batches":
            write_atomically(PAGE.with_name("spot.svg"), picture(trace, outcomes))
    write_atomically(PAGE, "".join(parts))


if __name__ == "__main__":
    main()
