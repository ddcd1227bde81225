"""What the documentation says that commands print, they print; `make docs` writes it anew."""

from __future__ import annotations

import difflib

import pytest
from tests.docs.output import PAGES, ROOT, Block, blocks, masked, printed, rewritten

SHOWN = [(path.relative_to(ROOT), block) for path in PAGES for block in blocks(path.read_text(encoding="utf-8"))]


def test_the_readme_shows_an_output() -> None:
    assert any(path.name == "README.md" for path, _ in SHOWN)


@pytest.mark.parametrize(("path", "block"), SHOWN, ids=[f"{path}: {block.arguments[0]}" for path, block in SHOWN])
def test_outputs_are_those_of_the_commands(path, block: Block) -> None:
    kept, now = masked(block.text).splitlines(), masked(printed(block)).splitlines()
    if kept != now:
        changes = "\n".join(difflib.unified_diff(kept, now, str(path), "printed now", lineterm="", n=0))
        pytest.fail(f"{changes}\n`make docs` takes the new output over", pytrace=False)


def test_times_alone_make_no_difference() -> None:
    one = "Search: 1,024 candidates in 1.95 s (264 M a second), 3 costed\n  phases in ms: bound 5,\n    predict 13\n\nEnd\n"
    other = one.replace("1.95", "0.2").replace("bound 5,\n    predict", "bound 51, predict")
    assert masked(one) == masked(other)
    assert masked(one) != masked(other.replace("1,024", "1,025"))


def test_a_block_is_found_with_its_command() -> None:
    page = "Text.\n\n<!-- output of: shardwright gpus --json -->\n```\nA100\n```\n\n```yaml\na: 1\n```\n"
    assert blocks(page) == [Block(("gpus", "--json"), "A100\n")]


def test_rewriting_keeps_the_times_and_a_page_that_holds() -> None:
    page = "<!-- output of: shardwright models gpt2 -->\n```\nold\n```\n"
    once = rewritten(page)
    assert "gpt2" in once and "old" not in once
    assert rewritten(once) == once
