"""What the documentation says that commands print, they print; `make docs` writes it anew."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import answered
from tests.docs.output import (
    PAGES,
    ROOT,
    SESSIONS,
    Block,
    blocks,
    commands,
    masked,
    printed,
    rewritten,
    worked_through,
)

ALONE = [
    (path.relative_to(ROOT), block)
    for path in PAGES
    if path not in SESSIONS
    for block in blocks(path.read_text(encoding="utf-8"))
]
TASKS = ("plan", "fit", "diagnose", "shop", "train")


def same(path: Path, block: Block, output: str) -> None:
    """Fail with the differences if a block shows anything but `output`."""
    kept, now = masked(block.text).splitlines(), masked(block.cut(output)).splitlines()
    if kept != now:
        changes = "\n".join(difflib.unified_diff(kept, now, str(path), "printed now", lineterm="", n=0))
        pytest.fail(f"{changes}\n`make docs` takes the new output over", pytrace=False)


@pytest.mark.parametrize(
    ("path", "block"),
    [
        pytest.param(
            path,
            block,
            id=f"{path}: {block.arguments[0]}",
            marks=[pytest.mark.nightly] if block.arguments[0] in ("plan", "shop") else [],
        )
        for path, block in ALONE
    ],
)
def test_outputs_are_those_of_the_commands(path, block: Block) -> None:
    same(path, block, printed(block.arguments))


@pytest.mark.nightly
def test_the_text_beside_the_demo_has_its_figures() -> None:
    words = ["--model", "llama-3.1-70b", "--cluster", "8x8xH100-SXM+16x8xA100-SXM-80", "--global-batch", "512"]
    found = answered(["plan", *words, "--seq-len", "8192", "--exportable-to", "megatron", "--json"])
    best = found["plans"][0]["prediction"]["iteration_seconds"]
    rules = {row["rule"]: row["iteration_seconds"] for row in found["baselines"]}
    uniform = next(seconds for rule, seconds in rules.items() if rule.startswith("one uniform plan over all machines"))
    alone = rules["the best plan on the H100-SXM alone"]
    readme, how = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("README.md", "docs/how-to.md")
    )
    assert f"{uniform / best:.2f}× as fast as Megatron-LM's uniform plan" in readme
    assert f"{alone / best:.2f}× as fast as the H100s alone" in readme
    assert f"here {best:.1f} s an iteration" in how
    assert f"takes {uniform:.1f} s, the H100s alone {alone:.1f} s" in how


def test_the_notebook_prints_the_table_of_the_walk() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    there: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(code, there)
    best, (first, *_) = there["ranking"].best, there["ranking"].plans
    assert float(shown.getvalue()) == best.iteration_seconds == first.iteration_seconds
    assert str(there["ranking"]) in (ROOT / "docs/first-hour.md").read_text(encoding="utf-8")


def test_the_readme_shows_a_command_and_its_output_for_each_task() -> None:
    page = SESSIONS[0].read_text(encoding="utf-8")
    typed = [words[1:] for words in commands(page) if words[0] == "shardwright"]
    shown = [block.arguments for block in blocks(page)]
    assert [arguments[0] for arguments in shown] == list(TASKS)
    assert set(shown) <= set(typed)


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["dry", "trains"])
@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.name)
def test_pages_can_be_worked_through_in_a_clone(path: Path, trains: bool, tmp_path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    outputs = worked_through(page, tmp_path, trains=trains)
    for block in blocks(page):
        if block.arguments in outputs:
            same(path, block, outputs[block.arguments])
    for program in re.findall(r"^```python\n(.*?)^```\n", page, re.DOTALL | re.MULTILINE):
        with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(program, str(path), "exec"), {})
        assert out.getvalue()


def test_times_alone_make_no_difference() -> None:
    one = "Search: 1,024 candidates in 1.95 s (264 M a second), 3 costed\n  phases in ms: bound 5,\n    predict 13\n\nEnd\n"
    other = one.replace("1.95", "0.2").replace("bound 5,\n    predict", "bound 51, predict")
    assert masked(one) == masked(other)
    assert masked(one) != masked(other.replace("1,024", "1,025"))


def test_a_block_is_found_with_its_command() -> None:
    page = "Text.\n\n<!-- output of: shardwright gpus --json -->\n```\nA100\n```\n\n```yaml\na: 1\n```\n"
    assert blocks(page) == [Block(("gpus", "--json"), None, "A100\n")]


def test_a_block_may_show_the_first_lines() -> None:
    (block,) = blocks("<!-- output of: shardwright gpus | head -n 2 -->\n```\na\nb\n…\n```\n")
    assert block.arguments == ("gpus",) and block.cut("a\nb\nc\n") == block.text


def test_commands_are_those_of_a_shell() -> None:
    page = "```sh\nshardwright fit gpt2 \\\n    --gpu L4   # small\n\npython make.py\n```\n```yaml\na: 1\n```\n"
    assert commands(page) == [("shardwright", "fit", "gpt2", "--gpu", "L4"), ("python", "make.py")]


def test_figures_of_a_training_run_make_no_difference() -> None:
    first = "step 1/5  loss 5.58  2.9 s/step\niteration 481 ms\n   0  0.0/0   80.4 µs   0% (-)   331.2 MiB (-)\n"
    again = "step 1/5  loss 5.62  12.9 s/step\niteration 1.2 s\n   0  0.0/0      2.3 ms  10% (-)    1.2 GiB (-)\n"
    assert masked(first) == masked(again)
    assert masked(first) == masked("step 0/5  loss 6.1\n" + again)
    assert masked(first) != masked(again.replace("1/5", "1/10"))
    assert masked(first) != masked(again.replace("iteration", "round"))


def test_rewriting_keeps_the_times_and_a_page_that_holds() -> None:
    page = "<!-- output of: shardwright models gpt2 -->\n```\nold\n```\n"
    once = rewritten(page)
    assert "gpt2" in once and "old" not in once
    assert rewritten(once) == once
