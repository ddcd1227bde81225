"""The nodes of a Kubernetes cluster: `kubectl get nodes`, with the labels of NVIDIA's GPU feature discovery
(https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery), of AMD's node labeller, of GKE or of
Karpenter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.discovery.document import Ask, MachineGroup, grouped

NODES = ("kubectl", "get", "nodes", "--output", "json")
LABEL = "nvidia.com/gpu."
RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu")
NAMES = (
    *(LABEL + "product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator"),
    "karpenter.k8s.aws/instance-gpu-name",
)
GOOGLES: Mapping[str, str] = {  # names of GKE that others use for other parts, or not at all
    "nvidia-tesla-a100": "A100-SXM-40",
    "nvidia-tesla-v100": "V100-SXM2-16",
    "nvidia-h100-mega-80gb": "H100-SXM",
}
SHARED = "-SHARED"  # behind the name of a GPU that takes turns between pods
QUANTITY = re.compile(r"(\d+)([KMGT]i)?")
GIBIBYTES = {None: 1 / 1024**3, "Ki": 1 / 1024**2, "Mi": 1 / 1024, "Gi": 1.0, "Ti": 1024.0}


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
        turns = max(_whole(labels.get(LABEL + "replicas")), 1)  # that pods take on a GPU, in the capacity alone
        counts = [-(-_whole(capacity[name]) // turns) for name in RESOURCES if name in capacity]
        count = max(counts) if counts else _whole(labels.get(LABEL + "count"))
        if node.get("spec", {}).get("unschedulable") or not count:
            continue
        mebibytes = str(labels.get(LABEL + "memory", ""))
        yield MachineGroup(
            gpu=_name(labels),
            gpus=count,
            gpu_memory_mib=float(mebibytes) if mebibytes.isdigit() else None,
            host_memory_gib=_gibibytes(str(capacity.get("memory", ""))),
        )


def _name(labels: Mapping[str, object]) -> str:
    name = str(next((labels[name] for name in NAMES if labels.get(name)), ""))
    return GOOGLES.get(name, name.removesuffix(SHARED))


def _whole(text: object) -> int:
    return int(str(text)) if str(text).isdigit() else 0


def _gibibytes(quantity: str) -> float | None:
    match = QUANTITY.fullmatch(quantity)
    return None if match is None else round(int(match[1]) * GIBIBYTES[match[2]], 1)
