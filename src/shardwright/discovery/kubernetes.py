"""The nodes of a Kubernetes cluster: `kubectl get nodes`, with the labels of NVIDIA's GPU feature discovery
(https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.discovery.machine import Ask, MachineGroup, grouped

NODES = ("kubectl", "get", "nodes", "--output", "json")
LABEL = "nvidia.com/gpu."
QUANTITY = re.compile(r"(\d+)([KMG]i)?")
GIBIBYTES = {None: 1 / 1024**3, "Ki": 1 / 1024**2, "Mi": 1 / 1024, "Gi": 1.0}


def kubernetes_machines(ask: Ask) -> tuple[MachineGroup, ...]:
    """Return the machines with GPUs of all nodes that take work; nothing without Kubernetes. The network is not seen,
    nor NVLink."""
    try:
        listing = json.loads(ask(NODES) or "{}")
        return grouped(_machines(listing.get("items", [])))
    except (ValueError, AttributeError, TypeError):
        return ()  # no answer of kubectl


def _machines(nodes: list[Mapping[str, Any]]) -> Iterator[MachineGroup]:
    for node in nodes:
        labels = node.get("metadata", {}).get("labels", {})
        capacity = node.get("status", {}).get("capacity", {})
        count = str(capacity.get("nvidia.com/gpu") or labels.get(LABEL + "count") or "0")
        if node.get("spec", {}).get("unschedulable") or not count.isdigit() or not int(count):
            continue
        mebibytes = str(labels.get(LABEL + "memory", ""))
        yield MachineGroup(
            gpu=str(labels.get(LABEL + "product", "")),
            gpus=int(count),
            gpu_memory_mib=float(mebibytes) if mebibytes.isdigit() else None,
            host_memory_gib=_gibibytes(str(capacity.get("memory", ""))),
        )


def _gibibytes(quantity: str) -> float | None:
    match = QUANTITY.fullmatch(quantity)
    return None if match is None else round(int(match[1]) * GIBIBYTES[match[2]], 1)
