"""A plan as a Kubernetes JobSet: a replicated job for each group of machines, and a ConfigMap with what they run.

Format: jobset.x-k8s.io/v1alpha2, https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2. Pods of a JobSet reach each
other by `JOBSET-JOB-0-INDEX.JOBSET`; an index stays with its pod when the set restarts.
"""

from __future__ import annotations

from functools import partial

from shardwright.errors import bad
from shardwright.exporters.exported import Exported, yaml_text
from shardwright.exporters.runner import MachineRange, Runner, part_of_a_box, runner_of
from shardwright.plans.plan import Plan

VERSION = "jobset.x-k8s.io/v1alpha2"
NAME = "shardwright"
MOUNT = "/shardwright"
# By vendor: the resource of its device plugin, and the label of a node with the GPU's name (NVIDIA's GPU feature
# discovery; AMD's node labeller). What Intel's are called depends on the plugin.
DEVICES = {
    "nvidia": ("nvidia.com/gpu", "nvidia.com/gpu.product"),
    "amd": ("amd.com/gpu", "amd.com/gpu.product-name"),
}
UNKNOWN = ("SET-ME/gpu", "SET-ME/product")
SEVERAL = "SET-ME/machine"  # of nodes with GPUs of several types, whose own labels name one of them
RESTARTS = 10  # of the whole set, after which a person should look


def export_jobset(plan: Plan) -> Exported:
    """Return `jobset.yaml`. Raises SpecError where the plan is not legal, and where it wants some GPUs of a machine
    with several types, of which a pod gets any."""
    runner = runner_of(plan)
    message, pin = part_of_a_box(plan)
    if message:
        raise bad("cluster", message, f"plan on all GPUs of the machine with {pin}, or start it by hand")
    files: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME},
        "data": dict(runner.files),
    }
    documents = [files, _jobset(runner)]
    labels = dict.fromkeys(
        DEVICES.get(group.vendor, UNKNOWN)[1] if len(group.types) == 1 else SEVERAL for group in runner.machines
    )
    head = (
        "# kubectl apply -f jobset.yaml   (written by shardwright). Yours to set: the image, values marked SET ME,\n"
        f"# a volume for data and checkpoints, and the labels of your nodes ({', '.join(labels)}).\n"
    )
    text = head + "---\n".join(yaml_text(document) for document in documents)
    return Exported(
        target="kubernetes", version=VERSION, files={"jobset.yaml": text}, document={"documents": documents}
    )


def _jobset(runner: Runner) -> dict[str, object]:
    job = partial(_job, runner)
    return {
        "apiVersion": VERSION,
        "kind": "JobSet",
        "metadata": {"name": NAME},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": RESTARTS},
            "successPolicy": {"operator": "All"},
            "replicatedJobs": [job(place, group) for place, group in enumerate(runner.machines)],
        },
    }


def _job(runner: Runner, place: int, group: MachineRange) -> dict[str, object]:
    resource, label = DEVICES.get(group.vendor, UNKNOWN)
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    environment: list[dict[str, object]] = [
        {"name": "INDEX", "valueFrom": index},
        {"name": "MASTER_ADDR", "value": f"{NAME}-machines-0-0-0.{NAME}"},
    ]
    environment += [{"name": name, "value": "SET ME"} for name, _ in runner.settings]
    start = f"export NODE_RANK=$(({group.first} + INDEX)); cd {MOUNT} && exec bash run.sh"
    container = {
        "name": "trainer",
        "image": "SET-ME",
        "command": ["bash", "-c", start],
        "env": environment,
        "resources": {"limits": {resource: group.gpus}},
        "volumeMounts": [{"name": "plan", "mountPath": MOUNT}, {"name": "memory", "mountPath": "/dev/shm"}],
    }
    volumes = [
        {"name": "plan", "configMap": {"name": NAME}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},  # NCCL and data loaders need more than the usual 64 MiB
    ]
    pod = {
        "restartPolicy": "Never",
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "nodeSelector": {label if len(group.types) == 1 else SEVERAL: group.kind},
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "name": f"machines-{place}",
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": group.count,
                "completions": group.count,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {"spec": pod},
            }
        },
    }
