"""`shardwright discover`."""

from __future__ import annotations

import sys
from typing import Annotated

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.output import write, write_json
from shardwright.commands import option


def discover(
    source: Annotated[
        str | None,
        option("--from", metavar="NAME", help="slurm, kubernetes or local; whoever knows GPUs, if not given."),
    ] = None,
    out: options.Out = None,
    json: options.AsJson = False,
) -> None:
    """Write the cluster file of the machines at hand: GPU types and counts, memory, NVLink and network cards, as
    SLURM, Kubernetes or nvidia-smi tells them. What they do not tell is left blank and named.

    Examples:

    \b
      shardwright discover -o cluster.yaml
      shardwright discover --from slurm
      shardwright plan --model llama-3.1-8b --cluster cluster.yaml --global-batch 128 --seq-len 8192
    """
    from dataclasses import asdict

    from shardwright.discovery.discover import discover as find

    require_writable(out, [], json=json)
    seen = find(source)
    if out is not None:
        deliver(seen.text, out)
    if json:
        machines = [asdict(group) for group in seen.machines]
        write_json({"source": seen.source, "machines": machines, "unseen": list(seen.unseen), "text": seen.text})
    elif out is None:
        write(seen.text)
    for words in seen.unseen:
        print(f"not seen: {words}", file=sys.stderr)
