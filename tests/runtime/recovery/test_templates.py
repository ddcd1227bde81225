"""The launch templates, run as they are. What starts their processes on machines is played: `ssh`, `srun`, a kubelet;
machines of the last two are network namespaces with names of their own, which find each other by these."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.runtime.recovery.fleet import _free_ports, copies, supplied
from tests.runtime.recovery.network import network

from shardwright.plans.document import save
from shardwright.runtime.storage.data import write_tokens

NODES = ("node-0", "node-1")
OPTIONS = ("--steps", "5", "--device", "cpu", "--silence", "8")
HOST = 'hostname "$0" && mount --bind "$1/hosts" /etc/hosts && mount --bind "$1" "$2" && shift 2 && exec "$@"'
TEMPLATES = Path(__file__).parents[3] / "examples" / "elastic"


def test_ssh_starts_a_keeper_on_each_host(tmp_path: Path) -> None:
    save(copies(2), tmp_path / "plan.json")
    (tmp_path / "a.txt").write_text("It is a truth universally acknowledged. " * 50)
    write_tokens(tmp_path / "c.bin", [tmp_path / "a.txt"])
    stub = tmp_path / "ssh"
    stub.write_text('#!/bin/bash\nshift\nexec bash -c "$*"\n')
    stub.chmod(0o755)
    (first,) = _free_ports(1)
    environment = os.environ | {
        "SSH": str(stub),
        "PORT": str(first),
        "STEP": "1",
        "OUT": str(tmp_path / "out"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    words = [TEMPLATES / "ssh.sh", "127.0.0.1 127.0.0.1", tmp_path / "plan.json", tmp_path / "c.bin"]
    done = subprocess.run([*map(str, words), *OPTIONS], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for machine in range(2):
        assert "\n5," in (tmp_path / "out" / f"machine-{machine}" / "metrics.csv").read_text()


@contextmanager
def hosts(folder: Path, names: Sequence[str]) -> Iterator[tuple[Path, list[str]]]:
    """Yield a path that is each machine's own, with a plan and data, and what to put before a command on each, in
    words of a shell."""
    own = Path(tempfile.mkdtemp(prefix="shardwright-"))
    with network(len(names)) as wires:
        lines = [f"{wires.address(index)} {name}" for index, name in enumerate(names)]
        found = []
        for index, name in enumerate(names):
            place = folder / f"machine-{index}"
            supplied(place, copies(len(names)))
            (place / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
            alone = ["unshare", "--uts", "bash", "-c", HOST, name.partition(".")[0], place, own]
            found.append(shlex.join(wires.command(index, folder, place, list(map(str, alone)))))
        try:
            yield own, found
        finally:
            own.rmdir()


def ended(words: Sequence[object], folder: Path, machines: int, **more: str) -> None:
    """Run a command to its end, and find the steps of all machines."""
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | more
    done = subprocess.run(
        list(map(str, words)), env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    for index in range(machines):
        assert "\n5," in (folder / f"machine-{index}" / "out" / "metrics.csv").read_text()


def command(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is the same on all machines."""
    return tmp_path_factory.mktemp("store")


@pytest.mark.nightly
def test_slurm_starts_a_keeper_on_each_node(tmp_path: Path, store: Path) -> None:
    with hosts(tmp_path, NODES) as (own, before):
        command(tmp_path / "scontrol", f"printf '%s\\n' {' '.join(NODES)}")
        each = "".join(f'{one} "$@" &\n' for one in before)
        command(tmp_path / "srun", f"shift 2\n{each}wait -n && wait -n")
        words = ["bash", TEMPLATES / "slurm.sh", own / "plan.json", own / "c.bin", f"file://{store}"]
        told = {"SLURM_JOB_NODELIST": "node-[0-1]", "SLURM_JOB_ID": own.name.partition("-")[2]}
        ended([*words, *OPTIONS, "--out", own / "out"], tmp_path, len(NODES), **told)


@pytest.mark.nightly
def test_a_jobset_has_a_keeper_in_each_pod(tmp_path: Path, store: Path) -> None:
    found = yaml.safe_load((TEMPLATES / "jobset.yaml").read_text())
    spec = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    pods = [f"{found['metadata']['name']}-machine-0-{index}.shardwright" for index in range(spec["completions"])]
    with hosts(tmp_path, pods) as (own, before):
        (text,) = container["args"]
        text = (
            text.replace("/job/corpus", f"{own}/c")
            .replace("/job/", f"{own}/")
            .replace("/out", f"{own}/out {' '.join(OPTIONS)}")
        )
        command(tmp_path / "keeper", text.replace("s3://bucket/run", f"file://{store}"))
        kept = (tmp_path / "keeper").read_text()
        run = shlex.join([*container["command"], kept])
        each = "".join(f"JOB_COMPLETION_INDEX={index} {one} {run} &\n" for index, one in enumerate(before))
        command(tmp_path / "kubelet", each + "wait -n && " * (len(pods) - 1) + "wait -n")
        (variable,) = container["env"]
        assert variable["valueFrom"]["secretKeyRef"] == {"name": "shardwright", "key": "secret"}
        ended([tmp_path / "kubelet"], tmp_path, len(pods), **{variable["name"]: "of a Secret of Kubernetes"})
