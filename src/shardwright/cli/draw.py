"""`shardwright draw`."""

from __future__ import annotations

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.measurements import Profiles, efficiency_of, read_measurements
from shardwright.errors import merged, reject


def draw(
    plan: options.PlanFile,
    out: options.Out = None,
    profile: Profiles = (),
) -> None:
    """Draw when each stage of a plan computes what, as SVG.

    Examples:

    \b
      shardwright draw plan.json -o plan.svg
    """
    from shardwright.plans.check import check
    from shardwright.plans.document import load_plan
    from shardwright.reports.svg.timeline import draw as picture

    require_writable(out, [plan, *profile])
    drawn = load_plan(plan)
    reject(merged(check(drawn)))
    measured = efficiency_of(read_measurements(profile), drawn.model, drawn.cluster, drawn.job)
    deliver(picture(drawn, efficiency=measured).svg, out)
