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
from tools.package import COMMANDS, MINORS, answers, lacking, strays

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


def test_a_release_publishes_what_was_checked_and_tried() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    runs = {name: [step.get("run", "") for step in job.get("steps", [])] for name, job in jobs.items()}
    assert "make package" in runs["build"]
    assert any(run.startswith("python -m tools.package --try") for run in runs["try"])
    assert jobs["try"]["strategy"]["matrix"]["python"] == [f"3.{minor}" for minor in MINORS]
    assert jobs["publish"]["needs"] == ["checks", "try"] and jobs["try"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}  # trusted publishing: no secret
    assert "build" not in " ".join(runs["publish"])


def test_every_form_for_an_issue_asks_for_the_versions() -> None:
    forms = list((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) >= 2
    for form in forms:
        fields = yaml.safe_load(form.read_text(encoding="utf-8"))["body"]
        (versions,) = (field for field in fields if field["attributes"].get("label") == "Versions")
        assert "shardwright --version --json" in versions["attributes"]["description"]
        assert versions["validations"]["required"]


def test_a_wheel_has_the_package_and_nothing_else() -> None:
    package = {"shardwright/__init__.py", "shardwright/py.typed"}
    whole = [*package, "shardwright/commit.txt", "shardwright-0.3.dist-info/METADATA"]
    assert strays(whole, package) == []
    assert strays([*whole, "tests/test_packaging.py"], package) == ["the wheel has tests/test_packaging.py"]
    assert strays(whole[1:], package) == [f"the wheel lacks {whole[0]}"]


def test_an_sdist_has_what_it_takes_to_build_from_it() -> None:
    names = [f"shardwright-0.3/{name}" for name in ("README.md", "LICENSE", "PKG-INFO", "pyproject.toml")]
    assert lacking(names) == ["the sdist lacks hatch_build.py", "the sdist lacks tests/test_packaging.py"]


def test_commands_that_do_not_answer_as_they_should_end_the_trial(tmp_path: Path) -> None:
    echo = [sys.executable, "-c", "import sys; print('Commands:' if sys.argv[1] == '--help' else '{}')"]
    with pytest.raises(SystemExit, match=rf"shardwright {COMMANDS[1][0]}: exit 0"):
        answers(echo, tmp_path)


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
