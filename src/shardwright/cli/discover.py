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
        option(
            "--from",
            metavar="NAME",
            help="slurm, kubernetes or local (nvidia-smi of files); by default whichever knows GPUs.",
        ),
    ] = None,
    from_file: Annotated[
        tuple[str, ...],
        option(
            "--from-file",
            metavar="FILE",
            help="Recorded output: scontrol show node, sinfo, kubectl get nodes -o json, nvidia-smi -q -x, nvidia-smi "
            "topo -m, ibstat; those of one machine are named HOST.… or written HOST=FILE. Repeatable.",
        ),
    ] = (),
    out: options.Out = None,
    json: options.AsJson = False,
) -> None:
    """Write the cluster file of the machines at hand: GPU types and counts, memory, NVLink and network cards, as
    SLURM, Kubernetes or nvidia-smi tells them. What they do not tell is left blank and named,
    and so are nodes that are left out (drained, reserved, not ready) and GPUs that were assumed. Recorded output is
    read from files (--from-file), so that a cluster can be planned for from elsewhere.

    Examples:

    \b
      shardwright discover -o cluster.yaml
      shardwright discover --from slurm
      shardwright discover --from-file scontrol.txt --from-file gpu01.smi.xml --from-file gpu01.ibstat -o cluster.yaml
      shardwright plan --model llama-3.1-8b --cluster cluster.yaml --global-batch 128 --seq-len 8192
    """
    from shardwright.discovery.discover import discover as find
    from shardwright.discovery.discover import discovery_document

    require_writable(out, [], json=json)
    seen = find(source, files=from_file)
    if out is not None:
        deliver(seen.text, out)
    if json:
        write_json(discovery_document(seen))
    elif out is None:
        write(seen.text)
    for heading, lines in (("left out", seen.left_out), ("note", seen.notes), ("not seen", seen.unseen)):
        for words in lines:
            print(f"{heading}: {words}", file=sys.stderr)
