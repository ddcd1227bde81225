"""Messages about a file name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright import load_cluster, load_model, load_offers
from shardwright.errors import Problem, SpecError
from shardwright.spec.text.reading import located

CLUSTER = """# machines
name: lab
nodes:
  - count: 4
    gpu: H100-SXM
    gpus: 8
  - {count: 2, gpu: A100-SXM-80, gpus: 8, memory_gb: many}
  - count: 1
    gpu: A100-SXM-80
    gbps: 400
"""


def problems(load: object, text: str, path: Path) -> dict[str, str]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load(str(path))  # type: ignore[operator]
    return {problem.path.replace(f"{path}: ", ""): problem.message for problem in caught.value.problems}


def test_every_fault_of_a_cluster_has_its_line(tmp_path: Path) -> None:
    found = problems(load_cluster, CLUSTER, tmp_path / "c.yaml")
    assert "line 7: nodes[1].memory_gb" in found
    assert "line 10: nodes[2].gbps" in found


def test_what_is_missing_has_the_line_of_what_lacks_it(tmp_path: Path) -> None:
    found = problems(load_cluster, "name: x\nnodes:\n  - {gpu: H100-SXM, gpus: 8}\n", tmp_path / "c.yaml")
    assert [path for path in found if path.startswith("line 3: nodes[0]")]


def test_models_and_offers_too(tmp_path: Path) -> None:
    model = problems(load_model, "name: m\nhidden: 64\nlayers: 2\nheads: seven\nvocab: 100\n", tmp_path / "m.yaml")
    assert "line 4: heads" in model
    offers = problems(load_offers, "offers:\n  - {gpu: H100-SXM, gpus: 8, market: black}\n", tmp_path / "o.yaml")
    assert "line 2: offers[0].market" in offers


def test_other_problems_stay_as_they_are() -> None:
    with pytest.raises(SpecError) as caught, located("a: 1", "x.yaml"):
        raise SpecError(Problem("x.yaml: line 3, column 2", "m"), Problem("other: a", "m"), Problem("x.yaml: a", "m"))
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["x.yaml: line 3, column 2", "other: a", "x.yaml: line 1: a"]
