"""What is told beside a launch, and what the launch says itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright import SpecError, load_cluster
from shardwright.importers.launch import plan_from_launch

MEGATRON = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4
--micro-batch-size 1 --global-batch-size 8 --vocab-size 512 --max-position-embeddings 4096 --bf16 {}"""
TRAINER = "base_model: meta-llama/Llama-3.2-1B\nmicro_batch_size: 1\nbf16: true\noptimizer: adamw_torch_fused\n{}"
FACTORY = "model_name_or_path: meta-llama/Llama-3.2-1B\nper_device_train_batch_size: 1\nstage: sft\ndo_train: true\nfinetuning_type: full\nbf16: true\n{}"
LAUNCHES = {
    "run.sh": (MEGATRON.replace("\n", " "), "--seq-length 2048"),
    "axolotl.yaml": (TRAINER, "sequence_len: 2048"),
    "llamafactory.yaml": (FACTORY, "cutoff_len: 2048"),
}


def length(tmp_path: Path, name: str, said: str, seq_len: int | None) -> int:
    (tmp_path / name).write_text(LAUNCHES[name][0].format(said) + "\n")
    reading = plan_from_launch(tmp_path / name, cluster=load_cluster("1x8xH100-SXM"), seq_len=seq_len)
    return reading.plan.job.seq_len


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_length_holds_where_the_launch_has_none_and_contradicts_it_nowhere(tmp_path: Path, name: str) -> None:
    said = LAUNCHES[name][1]
    assert length(tmp_path, name, said, None) == length(tmp_path, name, said, 2048) == 2048
    for other in (1, 1024, 4096):
        with pytest.raises(SpecError, match=f"is {other}, but the launch says 2048"):
            length(tmp_path, name, said, other)
    if name == "run.sh":
        assert length(tmp_path, name, "", 1024) == 1024
