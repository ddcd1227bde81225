"""Machines as nvidia-smi, scontrol and kubectl tell them become a cluster file that plans; what is not told is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.running import answered, refused, run

from shardwright import Cluster, SpecError, load_cluster
from shardwright.discovery.discover import Discovery, discover
from shardwright.discovery.document import Ask, MachineGroup, grouped, known
from shardwright.discovery.sources import kubernetes_nodes, slurm_nodes, this_machine

NVLINK = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n" + "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18))
SCONTROL = """\
NodeName=gpu01 Arch=x86_64 CPUTot=224 RealMemory=2063937 Gres=gpu:h100:8(S:0-1) State=IDLE Partitions=train,all
NodeName=gpu02 Arch=x86_64 CPUTot=224 RealMemory=2063937 Gres=gpu:h100:8(S:0-1) State=MIXED Partitions=train,all
NodeName=gpu03 Arch=x86_64 CPUTot=224 RealMemory=2063937 Gres=gpu:h100:8(S:0-1) State=DOWN+DRAIN Partitions=train,all
NodeName=old01 Arch=x86_64 CPUTot=64 RealMemory=515000 Gres=gpu:v100:4 State=ALLOCATED Partitions=all
NodeName=cpu01 Arch=x86_64 CPUTot=64 RealMemory=515000 Gres=(null) State=IDLE Partitions=all
"""


def node(product: str, count: int, memory: int, **spec: object) -> Mapping[str, object]:
    return {
        "metadata": {"labels": {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory)}},
        "spec": spec,
        "status": {"capacity": {"nvidia.com/gpu": str(count), "memory": "2113536000Ki"}},
    }


KUBERNETES = json.dumps({"items": [
    node("NVIDIA-A100-SXM4-80GB", 8, 81920), node("NVIDIA-A100-SXM4-80GB", 8, 81920),
    node("NVIDIA-A100-SXM4-80GB", 8, 81920, unschedulable=True), {"status": {"capacity": {"cpu": "4"}}},
]})  # fmt: skip


def answers(**found: str) -> Ask:
    """Return a shell in which only the commands of `found` exist (`nvlink` is nvidia-smi's)."""

    def ask(command: Sequence[str]) -> str | None:
        return found.get("nvlink" if "nvlink" in command else command[0].replace("-", "_"))

    return ask


def machine_of(tmp_path: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def planned(found: Discovery, tmp_path: Path) -> Cluster:
    path = tmp_path / "cluster.yaml"
    path.write_text(found.text)
    return load_cluster(str(path))


def test_this_machine_is_read_from_nvidia_smi_and_sys(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemTotal:       2113536000 kB\n"}
    for card in range(8):
        files[f"sys/class/infiniband/mlx5_{card}/ports/1/rate"] = "400 Gb/sec (4X NDR)\n"
        files[f"sys/class/infiniband/mlx5_{card}/ports/1/state"] = "4: ACTIVE\n" if card else "1: DOWN\n"
    ask = answers(nvidia_smi="NVIDIA H100 80GB HBM3, 81559\n" * 8, nvlink=NVLINK)
    assert this_machine(ask, machine_of(tmp_path, files)) == (
        MachineGroup(
            gpu="NVIDIA H100 80GB HBM3",
            gpus=8,
            gpu_memory_mib=81559.0,
            host_memory_gib=2015.6,
            nvlink_gb_per_second=pytest.approx(478.1, abs=0.1),
            network_gbps=(400.0,) * 7,
        ),
    )


def test_without_infiniband_the_wired_cards_that_are_up_count(tmp_path: Path) -> None:
    files = {
        "sys/class/net/eth0/speed": "25000\n", "sys/class/net/eth0/operstate": "up\n", "sys/class/net/eth0/device/x": "",
        "sys/class/net/eth1/speed": "-1\n", "sys/class/net/eth1/operstate": "down\n", "sys/class/net/eth1/device/x": "",
        "sys/class/net/docker0/speed": "10000\n", "sys/class/net/docker0/operstate": "up\n",
    }  # fmt: skip
    (found,) = this_machine(answers(nvidia_smi="NVIDIA GeForce RTX 3090, 24576\n" * 4), machine_of(tmp_path, files))
    assert found.network_gbps == (25.0,)
    assert found.nvlink_gb_per_second is None


def test_two_gpu_types_in_a_machine_are_two_groups() -> None:
    found = this_machine(answers(nvidia_smi="NVIDIA L4, 23034\nTesla T4, 15360\nNVIDIA L4, 23034\n"), Path("/nowhere"))
    assert [(group.gpu, group.gpus) for group in found] == [("NVIDIA L4", 2), ("Tesla T4", 1)]


def test_slurm_counts_equal_nodes_that_are_up() -> None:
    every = grouped(slurm_nodes(answers(scontrol=SCONTROL)))
    assert [(group.gpu, group.gpus, group.count) for group in every] == [("h100", 8, 2), ("v100", 4, 1)]
    assert every[0].host_memory_gib == 2015.6
    assert discover(ask=answers(scontrol=SCONTROL)).left_out == ("gpu03: DOWN+DRAIN",)


def test_kubernetes_counts_nodes_that_take_work() -> None:
    (found,) = grouped(kubernetes_nodes(answers(kubectl=KUBERNETES)))
    assert (found.gpu, found.gpus, found.count, found.gpu_memory_mib) == ("NVIDIA-A100-SXM4-80GB", 8, 2, 81920.0)


@pytest.mark.parametrize(
    ("labels", "resource", "count", "expected"),
    [
        (
            {"nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.replicas": "4"},
            "nvidia.com/gpu",
            "16",
            ("T4", 4),
        ),
        (
            {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "4"},
            "nvidia.com/gpu.shared",
            "16",
            ("T4", 4),
        ),
        (
            {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.count": "4"},
            "cpu",
            "64",
            ("T4", 4),
        ),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "nvidia.com/gpu", "7", None),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}, "nvidia.com/gpu", "8", ("A100-SXM-40", 8)),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, "nvidia.com/gpu", "8", ("H100-SXM", 8)),
        ({"karpenter.k8s.aws/instance-gpu-name": "l40s"}, "nvidia.com/gpu", "4", ("L40S", 4)),
        ({"node.kubernetes.io/instance-type": "p4d.24xlarge"}, "nvidia.com/gpu", "8", ("A100-SXM-40", 8)),
        ({"beta.kubernetes.io/instance-type": "p4de.24xlarge"}, "nvidia.com/gpu", "8", ("A100-SXM-80", 8)),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "amd.com/gpu", "8", ("MI300X", 8)),
    ],
)
def test_nodes_of_kubernetes_as_others_label_them(
    labels: dict[str, str], resource: str, count: str, expected: tuple[str, int] | None
) -> None:
    node = {"metadata": {"labels": labels}, "status": {"capacity": {resource: count, "memory": "2Ti"}}}
    found = grouped(kubernetes_nodes(lambda _: json.dumps({"items": [node]})))
    named = [(gpu.name, group.gpus, group.host_memory_gib) for group in found if (gpu := known(group))]
    assert named == ([] if expected is None else [(*expected, 2048.0)])


@pytest.mark.parametrize(
    ("taint", "left_out"),
    [
        ("node.kubernetes.io/unreachable", True),
        ("node.kubernetes.io/disk-pressure", True),
        ("node.kubernetes.io/network-unavailable", True),
        ("nvidia.com/gpu", False),  # which keeps work without GPUs away
        ("dedicated", False),
    ],
)
def test_what_kubernetes_holds_against_a_node_leaves_it_out(taint: str, left_out: bool) -> None:
    node = {
        "metadata": {"name": "a", "labels": {"nvidia.com/gpu.product": "Tesla-T4"}},
        "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]},
        "status": {"capacity": {"nvidia.com/gpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    (found,) = kubernetes_nodes(lambda _: json.dumps({"items": [node]}))
    assert found.gone == (taint.rpartition("/")[2] if left_out else "")


def test_slurm_leaves_out_nodes_that_are_not_there_and_parts_of_gpus() -> None:
    line = "NodeName=n{} Gres=gpu:a100:4,gpu:a100_1g.5gb:7 RealMemory=1024 State={} Partitions=all\n"
    listing = line.format(1, "IDLE") + line.format(2, "FUTURE") + line.format(3, "UNKNOWN")
    assert [(each.gpu, each.count) for each in grouped(slurm_nodes(answers(scontrol=listing)))] == [("a100", 1)]


@pytest.mark.parametrize(
    ("ask", "gpus"),
    [
        (answers(scontrol=SCONTROL), ["H100-SXM", "V100-SXM2"]),
        (answers(kubectl=KUBERNETES), ["A100-SXM-80"]),
        (answers(nvidia_smi="NVIDIA GeForce RTX 3090, 24576\n" * 8, nvlink=""), ["RTX3090"]),
        (answers(nvidia_smi="NVIDIA A100-SXM4-40GB, 40960\n" * 8, nvlink=""), ["A100-SXM-40"]),
        (answers(nvidia_smi="NVIDIA A100-SXM4-80GB, 81920\n"), ["A100-SXM-80"]),
        (answers(nvidia_smi="NVIDIA L40S, 46068\n"), ["L40S"]),
        (answers(nvidia_smi="NVIDIA H200, 143771\n" * 8), ["H200"]),
    ],
)
def test_what_is_found_is_a_cluster_that_loads(ask: Ask, gpus: list[str], tmp_path: Path) -> None:
    found = discover(ask=ask)
    assert found.complete
    assert [pool.gpu.name for pool in planned(found, tmp_path).pools] == gpus


def test_missing_nvlink_counts_and_what_was_not_seen_is_named(tmp_path: Path) -> None:
    found = discover(ask=answers(nvidia_smi="NVIDIA A100-SXM4-40GB, 40960\n" * 8, nvlink="", scontrol=""))
    (pool,) = planned(found, tmp_path).pools
    assert pool.intra_bytes_per_second == pool.gpu.pcie_bytes_per_second
    seen = discover(ask=answers(nvidia_smi="NVIDIA H100 80GB HBM3, 81559\n" * 8, nvlink=NVLINK))
    assert "intra_node" not in seen.text and not any("NVLink" in words for words in seen.unseen)
    slurm = discover(ask=answers(scontrol=SCONTROL))
    assert slurm.source == "slurm"
    for words in ("the network between machines", "NVLink inside a machine", "what a machine costs"):
        assert f"h100: {words}" in slurm.unseen
    assert "# inter_node_gbps:" in slurm.text and "# price_per_hour:" in slurm.text


def test_a_gpu_that_the_catalogue_lacks_is_named() -> None:
    found = discover(ask=answers(nvidia_smi="Imaginary X1, 1000\n"))
    assert not found.complete
    assert any("Imaginary X1: not in the catalogue" in words for words in found.unseen)


@given(st.text(max_size=200))
def test_odd_answers_are_no_traceback(text: str) -> None:
    ask = answers(nvidia_smi=text, nvlink=text, scontrol=text, kubectl=text)
    try:
        found = discover(ask=ask)
    except SpecError:
        return
    assert found.machines and found.text.startswith("#")


def test_where_there_is_no_gpu_the_command_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "no GPU was found" in refused(run(["discover"]))
    assert "did you mean slurm" in refused(run(["discover", "--from", "slum"]))


def test_the_command_writes_the_file_and_names_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "scontrol"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{SCONTROL}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    out = tmp_path / "cluster.yaml"
    outcome = run(["discover", "-o", str(out)])
    assert outcome.code == 0 and outcome.out == ""
    assert "not seen: h100: the network between machines" in outcome.err
    assert load_cluster(str(out)).gpus == 20
    document = answered(["discover", "--json"])
    assert document["source"] == "slurm" and document["machines"][0]["count"] == 2


def test_gpu_types_of_one_machine_are_written_as_one(tmp_path: Path) -> None:
    found = discover(
        "local", ask=answers(nvidia_smi="NVIDIA GeForce RTX 4090, 24564\n" * 2 + "NVIDIA GeForce RTX 3090, 24576\n")
    )
    assert [(part.gpu, part.gpus) for part in found.machines[0].by_type] == [
        ("NVIDIA GeForce RTX 4090", 2), ("NVIDIA GeForce RTX 3090", 1),
    ]  # fmt: skip
    assert found.complete and "RTX4090: 2" in found.text
    (tmp_path / "cluster.yaml").write_text(found.text)
    cluster = load_cluster(tmp_path / "cluster.yaml")
    assert cluster.one_machine and [pool.gpus_per_node for pool in cluster.pools] == [2, 1]
