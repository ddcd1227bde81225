"""What the project says of itself agrees: versions, ranges, the pin that tests run with, the commands that CI runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import shardwright

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def torch_requirement() -> Requirement:
    (found,) = (Requirement(text) for text in PROJECT["optional-dependencies"]["runtime"] if text.startswith("torch"))
    return found


def test_users_get_a_range_of_torch_and_tests_one_version_of_it() -> None:
    pin = Requirement(next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:5] == "torch"))
    (exact,) = pin.specifier
    assert exact.operator == "=="
    assert [part.operator for part in torch_requirement().specifier] == [">="]
    assert torch_requirement().specifier.contains(exact.version)
    pytest.importorskip("torch")
    assert version("torch").partition("+")[0] == exact.version, "the environment is not that of constraints.txt"


def test_installations_for_tests_take_the_constraints() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    installs = [line for line in makefile.splitlines() if "pip install" in line]
    assert installs and all("--constraint constraints.txt" in line for line in installs)
    assert "constraints.txt" in (ROOT / "tests/targets/megatron_venv.sh").read_text()


def test_the_version_is_one() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == shardwright.__version__
    assert citation["license"] == PROJECT["license"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout: nothing tells its commit")
def test_a_checkout_says_its_commit() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "shardwright", "--version"], capture_output=True, text=True, check=True
    )
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    said = re.fullmatch(r"shardwright (\S+) \(\S*?([0-9a-f]{12})(-dirty)?\)\n", shown.stdout)
    assert said and said[1] == shardwright.__version__ and head.startswith(said[2])


def test_the_workflow_runs_the_two_commands_of_the_readme() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text(encoding="utf-8"))
    steps = [step.get("run", "") for step in workflow["jobs"]["checks"]["steps"]]
    assert "make demo" in steps and ".ci/run" in steps
    assert "make test" in (ROOT / ".ci/run").read_text()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "    make demo" in readme and "    make test" in readme


def test_the_readme_says_how_to_install_without_claiming_a_published_package() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    assert "pip install ." in first_screen
    assert not re.search(r"pip install ['\"]?shardwright", first_screen)


def test_planning_needs_no_optional_package_and_no_module_of_posix() -> None:
    optional = {Requirement(text).name for texts in PROJECT["optional-dependencies"].values() for text in texts}
    modules = sorted({name.replace("-", "_") for name in optional} | {"fcntl", "grp", "pwd", "resource", "termios"})
    command = "plan --model gpt2 --cluster 1x2xL4 --global-batch 8 --seq-len 128 --json"
    program = f"import sys; sys.modules.update(dict.fromkeys({modules})); from shardwright.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *command.split()], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
