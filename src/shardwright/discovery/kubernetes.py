"""The nodes of a Kubernetes cluster: `kubectl get nodes`, with the labels of NVIDIA's GPU feature discovery
(https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery), of AMD's node labeller, of GKE or of
Karpenter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shardwright.discovery.document import OF_PARTS, Ask, MachineGroup, Node

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
PARTS = "nvidia.com/mig-"
SHARED = "-SHARED"  # behind the name of a GPU that takes turns between pods
QUANTITY = re.compile(r"(\d+)([KMGT]i)?")
GIBIBYTES = {None: 1 / 1024**3, "Ki": 1 / 1024**2, "Mi": 1 / 1024, "Gi": 1.0, "Ti": 1024.0}


def kubernetes_nodes(ask: Ask) -> tuple[Node, ...]:
    """Return the nodes with GPUs; nothing without Kubernetes. The network is not seen, nor NVLink."""
    return nodes_of_kubectl(ask(NODES) or "{}")


def nodes_of_kubectl(listing: str) -> tuple[Node, ...]:
    """Return the nodes with GPUs of `kubectl get nodes --output json`, nothing for any other text."""
    try:
        document = json.loads(listing)
        items = document.get("items", [document] if document.get("kind") == "Node" else [])
        return tuple(node for item in items for node in _nodes(item))
    except (ValueError, AttributeError, TypeError):
        return ()  # no answer of kubectl


def _nodes(item: Mapping[str, Any]) -> Iterator[Node]:
    """Yield a node with its whole GPUs, and with the parts (MIG) that it has of each size."""
    labels = item.get("metadata", {}).get("labels", {})
    host = str(item.get("metadata", {}).get("name") or labels.get("kubernetes.io/hostname", ""))
    status = item.get("status", {})
    capacity, there = status.get("capacity", {}), status.get("allocatable", {})
    gone = _gone(item)
    mebibytes = str(labels.get(LABEL + "memory", ""))
    machine = MachineGroup(
        gpu=_name(labels),
        gpus=0,
        gpu_memory_mib=float(mebibytes) if mebibytes.isdigit() else None,
        host_memory_gib=_gibibytes(str(capacity.get("memory", ""))),
    )
    for name, count in capacity.items():
        if name.startswith(PARTS) and _whole(count):
            parts = replace(machine, gpu=f"{machine.gpu} {name.removeprefix(PARTS)}", gpus=_whole(count))
            yield Node(host=host, machine=parts, gone=OF_PARTS)
    turns = max(_whole(labels.get(LABEL + "replicas")), 1)  # that pods take on a GPU, in the capacity alone
    counts = [(name, -(-_whole(capacity[name]) // turns)) for name in RESOURCES if name in capacity]
    count = max((number for _, number in counts), default=_whole(labels.get(LABEL + "count")))
    if not count:
        return
    free = max((-(-_whole(there[name]) // turns) for name, _ in counts if name in there), default=count)
    if 0 < free < count:
        note = f"{host}: {free} of {count} GPUs can be allocated; they are taken"
        yield Node(host=host, machine=replace(machine, gpus=free), gone=gone, notes=(note,))
    else:
        yield Node(host=host, machine=replace(machine, gpus=count), gone=gone or ("" if free else "no GPU allocatable"))


def _gone(item: Mapping[str, Any]) -> str:
    """Return why a node takes no new work, "" where it does."""
    if item.get("spec", {}).get("unschedulable"):
        return "cordoned"
    conditions = item.get("status", {}).get("conditions", [])
    ready = [condition.get("status") for condition in conditions if condition.get("type") == "Ready"]
    return "NotReady" if ready and ready[0] != "True" else ""


def _name(labels: Mapping[str, object]) -> str:
    name = str(next((labels[name] for name in NAMES if labels.get(name)), ""))
    return GOOGLES.get(name, name.removesuffix(SHARED))


def _whole(text: object) -> int:
    return int(str(text)) if str(text).isdigit() else 0


def _gibibytes(quantity: str) -> float | None:
    match = QUANTITY.fullmatch(quantity)
    return None if match is None else round(int(match[1]) * GIBIBYTES[match[2]], 1)
