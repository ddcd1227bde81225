"""Launch scripts as projects publish them: what bash would pass is what is read, and it becomes a plan or an error.

The files of `scripts/` have the structure and the figures of the scripts that they name; data and logging are shorter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shardwright import SpecError, load_cluster, load_model
from shardwright.importers.launch import plan_from_launch
from shardwright.importers.shell.read import read_script
from shardwright.importers.shell.wrappers import slurm_variables
from tests.importers.bash_judge import NOTED, passed_by_bash, same, variables_wanted

TRAINING = {"--tensor-model-parallel-size", "--tensor_model_parallel_size", "--num_processes", "--config"}
SCRIPTS = Path(__file__).parent / "scripts"
PAI = ["dsw", "8B", "1", "16", "1e-5", "1e-6", "8192", "8192", "bf16", "4", "2", "1", "true", "true", "true", "false", "sel", "false", "1000", "/data", "/data", "none", "100000000", "10000", "/out"]  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A script with its arguments and environment, and what should come of it: (world, tp, pp, dp, micro-batch, global
    batch, parameters in billions), or the words with which it is refused."""

    file: str
    cluster: str
    expected: tuple[float, ...] | str
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    model: str | None = None


CASES = (
    Published("nvidia-gpt3-175b.sh", "16x8xA100-SXM-80", (128, 8, 16, 1, 1, 1536, 174.6)),
    Published("nvidia-llama3-8b-fp8.sh", "1x8xH100-SXM", (8, 1, 1, 8, 1, 128, 8.03)),
    Published("nvidia-mixtral.sh", "1x8xH100-SXM", (2, 1, 1, 2, 1, 4, 0.019663)),
    Published("rocm-deepseek-v3.sh", "1x8xMI300X", (8, 1, 1, 8, 1, 128, 16.32)),
    Published("rocm-deepseek-v3.sh", "1x8xMI300X", (8, 2, 1, 4, 1, 128, 16.32), (), {"TP": "2", "ETP": "2"}),
    Published("pai-llama3.1.sh", "1x8xH100-SXM", (8, 4, 2, 1, 1, 16, 8.03), tuple(PAI)),
    Published("bigscience-bloom-176b.slurm", "48x8xA100-SXM-80", (384, 4, 12, 8, 2, 2048, 176.2)),
    Published("microsoft-llama2.sh", "1x8xA100-SXM-80", (8, 2, 2, 2, 4, 32, 1.5876)),
    Published("swiss-ai-llama3-70b.sh", "32x4xGH200", (128, 4, 8, 4, 1, 1024, 70.55)),
    Published("epfl-finetune.sh", "1x8xA100-SXM-80", "the model is in a checkpoint", ("llama2", "--tp", "4", "--data", "d")),
    Published("epfl-finetune.sh", "1x8xA100-SXM-80", "contains no Megatron-LM argument"),
    Published("bigcode-santacoder.slurm", "12x8xA100-SXM-80", (96, 1, 1, 96, 2, 960, 1.1246)),
    Published("granite-mi250.sh", "1x8xMI250X", (2, 2, 1, 1, 1, 4, 3.197)),
    Published("nnscaler-benchmark.sh", "1x8xV100-SXM-32", (8, 8, 1, 1, 8, 8, 0.355)),
    Published("llm-action-llama-7b.slurm", "2x8xA800-SXM-80", (16, 2, 2, 4, 2, 32, 6.74)),
    Published("yulan-muon.sh", "1x8xH100-SXM", "--optimizer: 'muon' is not a value"),
    Published("llm-jp-moe.sh", "4x8xH100-SXM", (32, 1, 2, 16, 2, 1024, 17.057), (), {"NUM_NODES": "4", "NUM_GPUS_PER_NODE": "8"}),
    Published("prism-zero-offload.sh", "1x1xH100-SXM", (1, 1, 1, 1, 4, 8, 6.658), ("prism", "7B", "4", "true")),
    Published("dgx2-qwen-14b.sh", "1x16xV100-SXM-32", (16, 4, 1, 4, 1, 16, 7.6)),
    Published("azure-1t.sh", "1x8xV100-SXM-32", (8, 1, 1, 8, 1, 8, 1008.3)),
    Published("qwen-next-gdn.sh", "16x8xH100-SXM", "layers without attention are not described by arguments alone"),
    Published("starcoder-mtf.slurm", "32x8xA100-SXM-80", (256, 4, 4, 16, 1, 512, 16.0)),
    Published("tsubame-345m-mpi.sh", "2x4xH100-SXM", "--optimizer: 'mvlion' is not", (), {"NHOSTS": "2", "JOB_ID": "77"}),
    Published("epfl-finetune.sh", "1x8xA100-SXM-80", (8, 4, 1, 2, 1, 12, 6.74), ("llama2", "--tp", "4", "--data", "d"), {}, "llama-2-7b"),
    Published("accelerate-fsdp.sh", "4x4xA100-SXM-80", (16, 1, 1, 16, 2, 32, 8.03), (), {}, "llama-3.1-8b"),
    Published("torchtitan-multinode.slurm", "4x8xH100-SXM", "is in another package"),
    Published("nvidia-sc21.sh", "8x8xA100-SXM-80", (64, 8, 8, 1, 1, 32, 162.2)),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file} {' '.join(case.environment)}")
def test_what_is_read_is_what_bash_passes(case: Published, tmp_path: Path) -> None:
    path = SCRIPTS / case.file
    text = path.read_text(encoding="utf-8")
    script = read_script(text, str(path), arguments=case.arguments, environment=case.environment, folder=SCRIPTS)
    read = [started.words for started in script.started if started.words[0].rsplit("/", 1)[-1] in NOTED]
    environment = slurm_variables(script.slurm) | variables_wanted([word for words in read for word in words])
    passed = passed_by_bash(path, case.arguments, {**environment, **case.environment}, tmp_path)
    training = [words for words in passed if TRAINING & set(words)]
    read = [words for words in read if TRAINING & set(words)]
    assert len(read) == len(training)
    for own, words in zip(read, training, strict=True):
        assert same(own, words), f"read {own}\npassed {words}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file} {' '.join(case.environment)}")
def test_the_plan_of_a_published_script(case: Published) -> None:
    path = SCRIPTS / case.file
    options: dict[str, Any] = {"arguments": case.arguments, "environment": case.environment}
    if case.model:
        options["model"] = load_model(case.model)
    cluster = load_cluster(case.cluster)
    if isinstance(case.expected, str):
        with pytest.raises(SpecError, match=case.expected) as caught:
            plan_from_launch(path, cluster=cluster, **options)
        assert len(caught.value.problems) == 1
        return
    plan = plan_from_launch(path, cluster=cluster, **options).plan
    (replica,) = plan.replicas
    stage, depth = replica.stages[0], len(replica.stages)
    found = (plan.gpus, stage.tensor_parallel, depth, replica.count, plan.micro_batch, plan.job.global_batch)
    assert found == case.expected[:-1]
    assert plan.model.parameters == pytest.approx(1e9 * case.expected[-1], rel=0.005)
