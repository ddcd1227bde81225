"""Where `--out` goes: never over a device, a pipe or the command's own input; `-` and /dev/stdout; overwriting is said."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.running import refused, run

from shardwright.files import write_atomically

COMMAND = [sys.executable, "-m", "shardwright"]
PLAN = ["plan", "--model", "gpt2", "--cluster", "1x2xA100-SXM-80", "--global-batch", "2", "--seq-len", "256"]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert run([*PLAN, "-o", str(path)]).code == 0
    return path


def test_a_pipe_stays_a_pipe_and_gets_the_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text\n")
        assert os.read(reader, 100) == b"text\n"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    device, link = tmp_path / "null", tmp_path / "link"
    try:  # a device of the test's own: a failure must not replace the machine's
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("needs the right to make and open devices")
    link.symlink_to(device)
    write_atomically(link, "text\n")
    assert link.is_symlink() and stat.S_ISCHR(device.stat().st_mode)


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_gets_the_plan_and_standard_error_the_report(name: str) -> None:
    done = subprocess.run([*COMMAND, *PLAN, "-o", name], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout)["model"]["name"] == "gpt2"
    assert "1 × 2 A100-SXM-80" in done.stderr
    assert not Path("-").exists()


def test_one_document_on_standard_output() -> None:
    assert "--json" in refused(run([*PLAN, "--json", "-o", "-"]))


@pytest.mark.parametrize("command", [["export", "--to", "megatron"], ["draw"]])
def test_an_input_is_never_replaced(command: list[str], plan_file: Path, tmp_path: Path) -> None:
    before, link = plan_file.read_bytes(), tmp_path / "link.json"
    link.symlink_to(plan_file)
    for out in (plan_file, link):
        message = refused(run([command[0], str(plan_file), *command[1:], "-o", str(out)]))
        assert "input" in message
    assert plan_file.read_bytes() == before


def test_a_cluster_file_is_not_replaced_by_its_plan(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("nodes:\n  - {count: 1, gpu: A100-SXM-80, gpus: 2}\n")
    message = refused(run([*PLAN[:4], str(cluster), *PLAN[5:], "-o", str(cluster)]))
    assert "input" in message


def test_a_folder_is_named_before_the_search(tmp_path: Path) -> None:
    assert "folder" in refused(run([*PLAN, "-o", str(tmp_path)]))
    assert "missing" in refused(run([*PLAN, "-o", str(tmp_path / "missing" / "plan.json")]))


def test_overwriting_is_said(plan_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.sh"
    command = ["export", str(plan_file), "--to", "megatron", "-o", str(out)]
    assert run(command).err == ""
    assert run(command).err == f"{out}: overwritten\n"


@pytest.mark.parametrize("arguments", [["models"], ["models", "--json"], PLAN])
def test_a_closed_standard_output_is_an_error_without_traceback(arguments: list[str]) -> None:
    words = " ".join([*COMMAND, *arguments])
    done = subprocess.run(["bash", "-c", f"{words} >&-"], stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "standard output: is closed" in done.stderr and "Traceback" not in done.stderr


def test_a_closed_standard_error_hides_nothing() -> None:
    words = " ".join([*COMMAND, "models", "gpt2"])
    done = subprocess.run(["bash", "-c", f"{words} 2>&-"], stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    assert done.returncode == 0 and "gpt2" in done.stdout


def test_an_interrupt_while_modules_load_is_silent() -> None:
    script = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from shardwright.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_cell_of_200000_characters_is_an_error_with_its_line(tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    runs.write_text("model,gpu,n_gpus,global_batch,seq_len,iteration_seconds\n" + "x" * 200_000 + ",,,,,\n")
    assert "line 2" in refused(run(["validate", str(runs)]))


@pytest.mark.parametrize(
    "script",
    [
        "A=(x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60 + "train ${A[@]}\n",
        "A=(x x)\n" + "A=(${A[@]} ${A[@]})\n" * 60 + "train ${A[@]}\n",
        "A=xxxxxxxx\n" + 'A="$A$A"\n' * 60 + "train " + "$A " * 2000 + "\n",
        "A=xxxxxxxx\n" + 'A="$A$A"\n' * 60 + "train " + "$A" * 20000 + "\n" + "train " + "$A-$A " * 9000 + "\n",
    ],
    ids=["arrays", "bare arrays", "words", "one word"],
)
def test_a_script_that_doubles_is_refused_at_once(script: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script)
    assert "more than" in refused(run(["evaluate", "--megatron-args", str(path), "--cluster", "1x8xA100-SXM-80"]))


def test_an_illegal_plan_is_evaluated_with_exit_2(plan_file: Path, tmp_path: Path) -> None:
    document = json.loads(plan_file.read_text())
    document["micro_batch"] = 3
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    for arguments in (["evaluate", str(broken)], ["evaluate", str(broken), "--json"]):
        assert run(arguments).code == 2


def test_a_width_of_zero_is_refused_in_one_message(plan_file: Path, tmp_path: Path) -> None:
    document = json.loads(plan_file.read_text())
    document["model"]["hidden"] = 0
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(document))
    for command in (["check"], ["evaluate"], ["draw"], ["export", "--to", "megatron"]):
        found = run([command[0], str(broken), *command[1:]])
        assert found.code == 2 and "Traceback" not in found.err and "Warning" not in found.err
        assert "hidden" in found.out + found.err
