"""Recorded output of cluster tools becomes the cluster that a reader of it would write down: 25 recordings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.running import refused, run

from shardwright import SpecError, discover, load_cluster


def scontrol(name: str, gres: str, state: str = "IDLE", memory: int = 2063937, features: str = "(null)") -> str:
    """Return a node as `scontrol show node` prints it."""
    return f"""NodeName={name} Arch=x86_64 CoresPerSocket=56
   CPUAlloc=0 CPUEfctv=224 CPUTot=224 CPULoad=1.02
   AvailableFeatures={features}
   ActiveFeatures={features}
   Gres={gres}
   NodeAddr={name} NodeHostName={name} Version=23.11.8
   OS=Linux 5.15.0-1053-nvidia #54-Ubuntu SMP
   RealMemory={memory} AllocMem=0 FreeMem=1980112 Sockets=2 Boards=1
   State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=train,all
   BootTime=2026-03-01T09:12:11 SlurmdStartTime=2026-03-01T09:14:40
   CfgTRES=cpu=224,mem={memory}M,billing=224,gres/gpu=8

"""


def smi(products: Sequence[tuple[str, int]], mig: str = "Disabled") -> str:
    """Return what `nvidia-smi -q -x` prints of GPUs of these names and MiB."""
    gpus = "".join(
        f"""	<gpu id="00000000:{place:02X}:00.0">
		<product_name>{name}</product_name>
		<product_brand>NVIDIA</product_brand>
		<mig_mode>
			<current_mig>{mig}</current_mig>
			<pending_mig>{mig}</pending_mig>
		</mig_mode>
		<uuid>GPU-{place}</uuid>
		<fb_memory_usage>
			<total>{memory} MiB</total>
			<reserved>612 MiB</reserved>
			<used>4 MiB</used>
			<free>{memory - 616} MiB</free>
		</fb_memory_usage>
	</gpu>
"""
        for place, (name, memory) in enumerate(products)
    )
    return f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<timestamp>Mon Mar  2 11:04:51 2026</timestamp>
	<driver_version>550.54.15</driver_version>
	<cuda_version>12.4</cuda_version>
	<attached_gpus>{len(products)}</attached_gpus>
{gpus}</nvidia_smi_log>
"""


def topo(gpus: int, link: str, cards: int = 4) -> str:
    """Return what `nvidia-smi topo -m` prints where every GPU is joined to every other alike, underlined as it is."""
    names = [*(f"GPU{i}" for i in range(gpus)), *(f"NIC{i}" for i in range(cards))]
    lines = ["\x1b[4m\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"]
    for row in range(len(names)):
        words = ["X" if row == place else link if max(row, place) < gpus else "SYS" for place in range(len(names))]
        lines.append("\t".join([names[row], *words, *(["0-55,112-167", "0", "N/A"] if row < gpus else [])]))
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing a bonded set", ""])


def ibstat(*ports: tuple[str, int]) -> str:
    """Return what `ibstat` prints of cards with these states and rates."""
    return "".join(
        f"""CA 'mlx5_{place}'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Port 1:
		State: {state}
		Physical state: LinkUp
		Rate: {rate}
		Base lid: 37
		Link layer: InfiniBand
"""
        for place, (state, rate) in enumerate(ports)
    )


def node(name: str, product: str, count: int, memory: int = 0, ready: str = "True", **more: Any) -> Mapping[str, Any]:
    """Return a node as `kubectl get nodes -o json` prints it."""
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product}
    capacity = {
        "cpu": "224",
        "memory": "2113536000Ki",
        "pods": "110",
        **({"nvidia.com/gpu": str(count)} if count else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | ({"nvidia.com/gpu.memory": str(memory)} if memory else {})},
        "spec": more.get("spec", {}),
        "status": {
            "capacity": capacity | more.get("parts", {}),
            "allocatable": {**capacity, **more.get("allocatable", {})},
            "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
        },
    }


def kubectl(*nodes: Mapping[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(nodes)}, indent=4)


H100, A100, A40G = ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA A100-SXM4-80GB", 81920), ("NVIDIA A100-SXM4-40GB", 40960)
IB = ibstat(*[("Active", 400)] * 8)
EIGHT = "gpu:h100:8(S:0-1)"


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Files by name; machines of the cluster as count, GPU and GPUs of each; Gbit/s between the first of them, its
    NVLink in GB/s where the file has it; and what must be told."""

    files: Mapping[str, str]
    machines: list[tuple[int, str, int]]
    network: float | None = None
    intra: float | None = None
    source: str | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


RECORDINGS = {
    "scontrol, equal nodes": Recording(
        files={"scontrol.txt": "".join(scontrol(f"gpu{i:02}", EIGHT) for i in range(1, 5))},
        machines=[(4, "H100-SXM", 8)],
        notes=("h100 is taken for H100-SXM (80 GB), not H100-PCIe or H100-NVL",),
    ),
    "scontrol, every state": Recording(
        files={
            "nodes": "".join(
                scontrol(f"n{i}", "gpu:a100_80g:4", state)
                for i, state in enumerate(
                    (
                        "IDLE",
                        "MIXED",
                        "ALLOCATED",
                        "MIXED+DRAIN",
                        "RESERVED",
                        "IDLE+MAINTENANCE",
                        "DOWN*",
                        "IDLE+PLANNED",
                        "MIXED+CLOUD+NOT_RESPONDING",
                    )
                )
            )
        },
        machines=[(4, "A100-SXM-80", 4)],
        left_out=(
            "n3: MIXED+DRAIN",
            "n4: RESERVED",
            "n5: IDLE+MAINTENANCE",
            "n6: DOWN*",
            "n8: MIXED+CLOUD+NOT_RESPONDING",
        ),
    ),
    "scontrol, in one line each": Recording(
        files={"nodes": "".join(scontrol(f"n{i}", "gpu:h200:8").replace("\n   ", " ").strip() + "\n" for i in (1, 2))},
        machines=[(2, "H200", 8)],
    ),
    "scontrol, a100 is assumed": Recording(
        files={"nodes": scontrol("n1", "gpu:a100:8")},
        machines=[(1, "A100-SXM-80", 8)],
        notes=("a100 is taken for A100-SXM-80", "not A100-PCIe-40 or A100-SXM-40 or A100-PCIe-80: write it in"),
    ),
    "scontrol, parts of GPUs": Recording(
        files={"nodes": scontrol("n1", "gpu:a100_1g.5gb:14,gpu:a100_3g.20gb:4") + scontrol("n2", "gpu:a100_80g:8")},
        machines=[(1, "A100-SXM-80", 8)],
        left_out=("n1 (14 × a100_1g.5gb), n1 (4 × a100_3g.20gb): parts of GPUs (MIG)",),
    ),
    "scontrol, the type is a feature": Recording(
        files={"nodes": scontrol("n1", "gpu:4", features="ib,l40s,avx512")}, machines=[(1, "L40S", 4)]
    ),
    "scontrol, types and machines mixed": Recording(
        files={
            "nodes": scontrol("a", "gpu:v100:4", memory=515000)
            + scontrol("b", EIGHT)
            + scontrol("c", "(null)")
            + scontrol("d", "gpu:rtx3090:2,gpu:l4:1")
        },
        machines=[(1, "V100-SXM2", 4), (1, "H100-SXM", 8), (1, "RTX3090", 2), (1, "L4", 1)],
    ),
    "sinfo, ranges of hosts": Recording(
        files={
            "sinfo.txt": "NODELIST                 GRES           STATE   MEMORY\n"
            "gpu[01-03,07]            gpu:h100:8     mixed   2063937\n"
            "gpu04                    gpu:h100:8     drained 2063937\n"
            "gpu[05-06]               gpu:h100:8     resv    2063937\n"
            "cpu[001-100]             (null)         idle    515000\n"
        },
        machines=[(4, "H100-SXM", 8)],
        left_out=("gpu04: drained", "gpu05, gpu06: resv"),
    ),
    "sinfo, a line for each partition": Recording(
        files={
            "sinfo.txt": "PARTITION NODELIST STATE GRES\ntrain n1 idle gpu:l40s:8\nall* n1 idle gpu:l40s:8\nall* n2 maint gpu:l40s:8\n"
        },
        machines=[(1, "L40S", 8)],
        left_out=("n2: maint",),
    ),
    "scontrol and sinfo contradict each other": Recording(
        files={
            "scontrol": scontrol("n1", EIGHT) + scontrol("n2", EIGHT),
            "sinfo": "NODELIST STATE\nn1 idle\nn2 drng\n",
        },
        machines=[(1, "H100-SXM", 8)],
        left_out=("n2: drng",),
        notes=("n2: scontrol and sinfo contradict each other; it is left out",),
    ),
    "scontrol, and all files of a machine": Recording(
        files={
            "scontrol.txt": scontrol("gpu01", "gpu:h100:8") + scontrol("gpu02", "gpu:h100:8"),
            "gpu01.smi.xml": smi([H100] * 8),
            "gpu01.topo": topo(8, "NV18"),
            "gpu01.ibstat": IB,
            "gpu02.smi.xml": smi([H100] * 8),
            "gpu02.topo": topo(8, "NV18"),
            "gpu02.ibstat": IB,
        },
        machines=[(2, "H100-SXM", 8)],
        network=3200,
    ),
    "scontrol, and files of one machine of three": Recording(
        files={
            "scontrol.txt": "".join(scontrol(f"gpu0{i}", "gpu:a100:8") for i in (1, 2, 3)),
            "gpu01.smi.xml": smi([A40G] * 8),
            "gpu01.ibstat": ibstat(("Active", 200), ("Active", 200), ("Down", 40)),
        },
        machines=[(3, "A100-SXM-40", 8)],
        network=400,
        notes=(
            "gpu02: no file tells of it; it is taken to be as others that are listed alike",
            "gpu01: port 1 of mlx5_2 is Down: left out",
        ),
    ),
    "a GPU has fallen off": Recording(
        files={"scontrol.txt": scontrol("n1", EIGHT), "n1.xml": smi([H100] * 7)},
        machines=[(1, "H100-SXM", 7)],
        notes=("n1: listed with 8 GPUs, nvidia-smi says 7; they are taken",),
    ),
    "the listing has another type": Recording(
        files={"scontrol.txt": scontrol("n1", "gpu:h100:8"), "n1.xml": smi([A100] * 8)},
        machines=[(1, "A100-SXM-80", 8)],
        notes=("n1: listed with 8 × h100, nvidia-smi says 8 × NVIDIA A100-SXM4-80GB, which is taken",),
    ),
    "files of a node that is not listed": Recording(
        files={"scontrol.txt": scontrol("n1", EIGHT), "n9.xml": smi([H100] * 8)},
        machines=[(1, "H100-SXM", 8)],
        notes=("n9: files tell of it, and no node of that name is listed",),
    ),
    "nvidia-smi of one machine": Recording(
        files={"box.xml": smi([("NVIDIA GeForce RTX 3090", 24576)] * 4), "box.topo": topo(4, "PHB", 1)},
        machines=[(1, "RTX3090", 4)],
        intra=None,
    ),
    "nvidia-smi, no NVLink where there is one": Recording(
        files={"n1.xml": smi([A100] * 4), "n1.topo": topo(4, "SYS")}, machines=[(1, "A100-SXM-80", 4)], intra=25.6
    ),
    "nvidia-smi, fewer links": Recording(
        files={"n1.xml": smi([A100] * 4), "n1.topo": topo(4, "NV2")}, machines=[(1, "A100-SXM-80", 4)], intra=150.0
    ),
    "nvidia-smi of two unlike machines": Recording(
        files={"a.xml": smi([H100] * 8), "b.xml": smi([A100] * 8), "a.ibstat": IB},
        machines=[(1, "H100-SXM", 8), (1, "A100-SXM-80", 8)],
        network=3200,
    ),
    "nvidia-smi, hosts by name": Recording(
        files={"left=1.xml": smi([H100] * 8), "right=2.xml": smi([H100] * 8)}, machines=[(2, "H100-SXM", 8)]
    ),
    "nvidia-smi, MIG is on": Recording(
        files={"a.xml": smi([A100] * 2, mig="Enabled"), "b.xml": smi([A100] * 8)},
        machines=[(1, "A100-SXM-80", 8)],
        left_out=("a (2 × NVIDIA A100-SXM4-80GB): parts of GPUs (MIG)",),
    ),
    "nvidia-smi and topo count differently": Recording(
        files={"a.xml": smi([H100] * 8), "a.topo": topo(4, "NV18")},
        machines=[(1, "H100-SXM", 8)],
        notes=("a: nvidia-smi -q lists 8 GPUs, topo -m 4; 8 are taken",),
    ),
    "kubectl, not ready and cordoned": Recording(
        files={
            "nodes.json": kubectl(
                node("a", "NVIDIA-H100-80GB-HBM3", 8, 81559),
                node("b", "NVIDIA-H100-80GB-HBM3", 8, 81559, ready="Unknown"),
                node("c", "NVIDIA-H100-80GB-HBM3", 8, 81559, ready="False"),
                node("d", "NVIDIA-H100-80GB-HBM3", 8, 81559, spec={"unschedulable": True}),
                node("e", "", 0),
            )
        },
        machines=[(1, "H100-SXM", 8)],
        left_out=("b, c: NotReady", "d: cordoned"),
    ),
    "kubectl, parts and sick GPUs": Recording(
        files={
            "nodes.json": kubectl(
                node("a", "NVIDIA-A100-SXM4-80GB", 0, 81920, parts={"nvidia.com/mig-1g.10gb": "7"}),
                node("b", "NVIDIA-A100-SXM4-80GB", 8, 81920, allocatable={"nvidia.com/gpu": "7"}),
                node("c", "NVIDIA-A100-SXM4-80GB", 8, 81920, allocatable={"nvidia.com/gpu": "0"}),
            )
        },
        machines=[(1, "A100-SXM-80", 7)],
        left_out=("a (7 × NVIDIA-A100-SXM4-80GB 1g.10gb): parts of GPUs (MIG)", "c: no GPU allocatable"),
        notes=("b: 7 of 8 GPUs can be allocated; they are taken",),
    ),
    "kubectl, and cards of a machine": Recording(
        files={
            "nodes.json": kubectl(*(node(f"w{i}", "NVIDIA-H100-80GB-HBM3", 8, 81559) for i in (1, 2))),
            "w1.ibstat": IB,
            "w2.ibstat": IB,
        },
        machines=[(2, "H100-SXM", 8)],
        network=3200,
        source="kubernetes",
    ),
}


def names_of(files: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    """Write files, and return them as the command line names them."""
    names = []
    for name, text in files.items():
        host, sign, file = name.rpartition("=")
        (folder / file).write_text(text)
        names.append(f"{host}{sign}{folder / file}")
    return tuple(names)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_is_the_cluster_that_it_shows(name: str, tmp_path: Path) -> None:
    recording = RECORDINGS[name]
    seen = discover(recording.source, files=names_of(recording.files, tmp_path))
    path = tmp_path / "cluster.yaml"
    path.write_text(seen.text)
    pools = load_cluster(str(path)).pools
    assert [(pool.nodes, pool.gpu.name, pool.gpus_per_node) for pool in pools] == recording.machines
    if recording.network is not None:
        assert pools[0].inter_bytes_per_second == recording.network * 1e9 / 8
    if recording.intra is not None:
        assert pools[0].intra_bytes_per_second == pytest.approx(recording.intra * 1e9, rel=0.3)
        assert "intra_node_gb_per_second: " in seen.text
    assert seen.left_out == recording.left_out
    notes = " | ".join(seen.notes)
    assert all(words in notes for words in recording.notes), notes
    assert recording.notes or all("is taken for" in note for note in seen.notes), notes


def test_all_of_them_are_left_out(tmp_path: Path) -> None:
    files = names_of({"nodes": scontrol("n1", EIGHT, "DOWN+DRAIN") + scontrol("n2", EIGHT, "MAINT")}, tmp_path)
    with pytest.raises(SpecError, match=r"no GPU takes work .*: n1: DOWN\+DRAIN; n2: MAINT"):
        discover(files=files)


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        ("hello", None, "is no output that is read here"),
        ("{}", None, "lists no node with GPUs"),
        ("<nvidia_smi_log><gpu>", None, "is no XML"),
        (IB, "slurm", "no file holds the output of scontrol show node or sinfo"),
        (smi([H100]), "local", "`from=local`: is not known"),
    ],
)
def test_other_files_are_refused(text: str, source: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        discover(source, files=names_of({"a.txt": text}, tmp_path))
    assert all(problem.hint for problem in caught.value.problems)


def test_the_command_reads_files_and_tells_what_it_left_out(tmp_path: Path) -> None:
    names = names_of(RECORDINGS["scontrol, every state"].files, tmp_path)
    outcome = run(["discover", "--from", "slurm", *(word for name in names for word in ("--from-file", name))])
    assert outcome.code == 0 and "gpu: A100-SXM-80" in outcome.out
    assert "left out: n4: RESERVED" in outcome.err
    assert "such file" in refused(run(["discover", "--from-file", str(tmp_path / "nothing")]))
    assert "reads only recorded output" in refused(run(["discover", "--from", "nvidia-smi"]))


PRODUCTS = {
    "NVIDIA GeForce RTX 4090": "RTX4090", "NVIDIA GeForce RTX 3090": "RTX3090", "NVIDIA A100-PCIE-40GB": "A100-PCIe-40",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80",
}  # fmt: skip
MEMORY = {"RTX4090": (24564, 49140), "RTX3090": (24576,), "A100-PCIe-40": (40960,), "A100-SXM-80": (81920, 81251)}


@given(st.lists(st.sampled_from([(name, size) for name, gpu in PRODUCTS.items() for size in MEMORY[gpu]]), min_size=1, max_size=8))  # fmt: skip
def test_any_box_of_gpus_is_a_cluster_that_loads(tmp_path_factory: pytest.TempPathFactory, box: Any) -> None:
    """In whatever order they are listed, also those that differ in memory alone or in form alone."""
    folder = tmp_path_factory.mktemp("box")
    (folder / "box.smi.xml").write_text(smi(box))
    text = discover(files=[str(folder / "box.smi.xml")]).text
    (folder / "cluster.yaml").write_text(text)
    pools = load_cluster(folder / "cluster.yaml").pools
    wanted = Counter(PRODUCTS[name] for name, _ in box)
    assert {pool.gpu.kind: pool.gpus for pool in pools} == wanted
    assert len({pool.machines for pool in pools}) == 1 and pools[0].gpus_of_machine == len(box)
