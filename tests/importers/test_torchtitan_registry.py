"""Configurations in torchtitan's own way: functions of `torchtitan/models/<family>/config_registry.py`, from 0.3 on."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright import SpecError, load_model
from shardwright.exporters.torchtitan.models import registered
from shardwright.importers.launch import plan_from_launch
from shardwright.importers.megatron.read import Reading
from shardwright.spec.read.presets import preset_model, preset_names
from tests.golden.plans import cluster_of

IMPORTS = """from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter, NVFP4LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.trainer import Trainer

from . import model_registry

"""
INLINE = """
def train() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"{converters}),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=4),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, enable_async_tensor_parallel=True),
    )
"""
BY_NAMES = """
def train() -> Trainer.Config:
    compile_config = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    model_spec = model_registry("8B"{converters})
    training, parallelism = TrainingConfig(), None
    sizes = TrainingConfig(local_batch_size=2, seq_len=8192, steps=1000)
    degrees = ParallelismConfig(tensor_parallel_degree=4)
    return Trainer.Config(
        model_spec=model_spec, training=sizes, parallelism=degrees, activation_checkpoint=FullAC.Config(),
        compile=compile_config,
    )
"""


def read(folder: Path, body: str, family: str = "llama3", model: str | None = None) -> Reading:
    path = folder / family / "config_registry.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(IMPORTS + body)
    return plan_from_launch(
        path, cluster=cluster_of(2), model=load_model(model) if model else None, arguments=("train",)
    )


@pytest.mark.parametrize("converter", ["", "Float8LinearConverter", "MXFP8LinearConverter"])
def test_parts_with_names_are_read_as_those_in_place(converter: str, tmp_path: Path) -> None:
    made = f", converters=[{converter}.Config(filter_fqns=['lm_head'])]" if converter else ""
    inline, named = (read(tmp_path, body.replace("{converters}", made)) for body in (INLINE, BY_NAMES))
    assert inline.plan == named.plan and inline.uncounted == named.uncounted == ()
    plan = inline.plan
    assert plan.model.name == "llama-3-8b" and plan.job.precision == ("fp8" if converter else "bf16")
    assert (plan.micro_batch, plan.job.seq_len, plan.job.global_batch) == (2, 8192, 8)
    assert (plan.stages[0].tensor_parallel, plan.stages[0].recompute.granularity) == (4, "full")


def test_a_converter_that_is_not_described_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="converters: nvfp4linearconverter is not described"):
        read(tmp_path, INLINE.replace("{converters}", ", converters=[NVFP4LinearConverter.Config()]"))


def test_a_model_is_that_of_its_family_and_of_none_whose_name_begins_so(tmp_path: Path) -> None:
    """Qwen3.5's 4B is not Qwen3's."""
    known = {(made.module, made.flavor) for name in preset_names() if (made := registered(preset_model(name)))}
    for module, flavor in sorted(known):
        body = INLINE.replace("{converters}", "").replace("8B", flavor).replace("tensor_parallel_degree=4", "")
        assert read(tmp_path, body, module).plan.gpus == 16
        with pytest.raises(SpecError, match=f"names {module}_5 {flavor}, which is not known"):
            read(tmp_path, body, f"{module}_5")


def test_what_builds_on_a_configuration_of_another_file_is_refused_by_its_name(tmp_path: Path) -> None:
    """Else its batch, lengths and degrees would be torchtitan's defaults."""
    imports = "from torchtitan.models.llama3.config_registry import llama3_8b\n"
    for call in ("llama3_8b()", "to_graph_trainer_config(llama3_8b(), model_registry)"):
        with pytest.raises(SpecError, match="builds on llama3_8b of another file"):
            read(tmp_path, f"{imports}def train():\n    config = {call}\n    return config\n", model="llama-3.1-8b")
