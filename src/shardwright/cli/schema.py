"""`shardwright schema`."""

from __future__ import annotations

from typing import Annotated

from shardwright.cli.output import write_json
from shardwright.commands import argument


def schema(
    name: Annotated[str, argument(metavar="NAME", help="One of the documents above, e.g. plan or cluster.")],
) -> None:
    """Print the JSON schema of a document that commands write or read.

    Examples:

    \b
      shardwright schema plan > plan.schema.json
      shardwright schema ranking

    Written: plan (`plan --out`), ranking (`plan --json`), evaluation (`evaluate --json`), discovery (`discover
    --json`), validation (`validate --json`), simulation (`simulate-spot --json`), recovery (`recover --dry-run
    --json`), program and losses (`spmd plan` and `spmd train --json`), layout (`train --dry-run --json`), training
    (`train --json`), measurement (`profile --json`), and calibrate, check, export, fit, shop, support, gpus, models and
    prices (`--json`).
    Read: cluster (a cluster file), offers (what `shop --offers` reads), profile (a machine profile), layers (a layer
    profile), calibration (what `calibrate` writes).
    """
    from shardwright.errors import bad, suggestion
    from shardwright.reports.documents.schemas import document_names, document_schema

    if name not in document_names():
        raise bad("NAME", f"there is no document {name!r}", suggestion(name, document_names()))
    write_json(document_schema(name))
