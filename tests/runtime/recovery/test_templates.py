"""The launch templates: that of ssh is tried with two machines here, the others are read by what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from tests.runtime.recovery.fleet import _free_ports, copies

from shardwright.plans.document import save
from shardwright.runtime.storage.data import write_tokens

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
    options = ["--steps", "5", "--device", "cpu", "--silence", "8"]
    done = subprocess.run([*map(str, words), *options], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for machine in range(2):
        assert "\n5," in (tmp_path / "out" / f"machine-{machine}" / "metrics.csv").read_text()


def test_the_other_templates_are_whole() -> None:
    subprocess.run(["bash", "-n", str(TEMPLATES / "slurm.sh")], check=True)
    found = yaml.safe_load((TEMPLATES / "jobset.yaml").read_text())
    pod = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert found["kind"] == "JobSet" and pod["terminationGracePeriodSeconds"] == 120
    assert "--elastic" in pod["containers"][0]["args"][0]
