"""A way to train that fits, as the recipe of a trainer: the file that its command takes.

Every key is one of the trainer's own schema (`importers`' lists of keys; the tests compare). Dataset and template are
the trainer's own example, there to be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from shardwright.cost.memory.facts import memory_facts
from shardwright.errors import Problem, bad, reject, suggestion
from shardwright.exporters.exported import yaml_text
from shardwright.exporters.hugging_face import adapter_config, unnamed_targets
from shardwright.exporters.support.traits import ON_THE_GPU
from shardwright.plans.abilities import fused_attention_runs
from shardwright.records import record
from shardwright.search.sizing import Size, Sizing, TrainingWay
from shardwright.spec.adapter import LINEAR, Adapter
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.options import said
from shardwright.spec.read.presets import find_preset, preset_source

HUB = "huggingface.co/"
OPTIMIZERS = {"adam": "adamw_torch_fused", "adam8bit": "adamw_bnb_8bit"}  # transformers' and axolotl's names
FSDP = {
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "cpu_ram_efficient_loading": True,
    "offload_params": False,
    "reshard_after_forward": True,
    "state_dict_type": "FULL_STATE_DICT",
}  # huggingface.co/docs/accelerate/package_reference/fsdp


@record
class Task:
    """What a recipe says: a way to train a model, called `source`, in micro-batches of `samples`, with FlashAttention
    where all of its GPUs have kernels of it."""

    model: Model
    source: str
    job: Job
    way: TrainingWay
    samples: int
    flash_attention: bool

    @property
    def attention(self) -> str:
        """The implementation of attention by its name in transformers: PyTorch's own where FlashAttention has none."""
        return "flash_attention_2" if self.flash_attention else "sdpa"

    @property
    def adapter(self) -> Adapter | None:
        return self.way.adapter

    @property
    def chunked(self) -> bool:
        """Whether the loss is computed in chunks: by a kernel of Liger's."""
        return self.job.options.loss == "chunked"

    @property
    def modules(self) -> str | list[str]:
        """The names of the matrices that have adapters, as PEFT is told of them."""
        assert self.adapter is not None, "only asked where there are some"
        names = adapter_config(self.model, self.adapter)["target_modules"]
        assert isinstance(names, str | list), "a word for all, or a list"
        return names


def recipe(sizing: Sizing, source: str, trainer: str) -> str:
    """Return the recipe of a trainer for the first way that fits and that it has. `source` is what the user called the
    model. Raises SpecError for a trainer without recipes here, and where none of its ways fits."""
    if trainer not in RECIPES:
        raise bad("`recipe=`", f"{trainer!r} is not written", suggestion(trainer, RECIPES))
    for tower in sizing.model.towers:
        message = f"is of text models, and {sizing.model.name} has {tower.noun}"
        raise bad("`recipe=`", message, "make a plan and export it: `shardwright plan`, then `shardwright export`")
    size, whole = runnable(sizing), sizing.too_large_to_load
    if size is not None and size.way.quantised and whole is not None and trainer == "trl":  # get_kbit_device_map
        message = f"of trl loads all {whole / 2**30:.1f} GiB of 4-bit weights on each GPU before it shards them"
        raise bad("`recipe=`", message, "use --recipe axolotl, or `shardwright plan` and `export --to accelerate`")
    if size is None:
        hint = "`shardwright fit` without a recipe says what would make others fit"
        raise bad("`recipe=`", f"no way that {trainer} has fits on {sizing.types}", hint)
    if sizing.job.optimizer not in OPTIMIZERS:
        raise bad("`recipe=`", f"has no optimizer {sizing.job.optimizer}", f"use {' or '.join(OPTIMIZERS)}")
    reject(unnamed_targets(sizing.model, size.way.adapter))
    reject(_without_recipe(sizing.job, trainer))
    known = {"loss", "activation_offload", "master_weights"}
    if others := said(size.way.of(sizing.job).options).keys() - known:
        raise bad(
            "`recipe=`", f"does not say {', '.join(sorted(others))}", "fit without, or `shardwright export` a plan"
        )
    samples = sizing.job.global_batch // sizing.cluster.gpus
    task = Task(
        model=sizing.model,
        source=_repository(source),
        job=sizing.job,
        way=size.way,
        samples=samples,
        flash_attention=all(fused_attention_runs(pool.gpu, "bf16") for pool in sizing.cluster.pools),
    )
    words = f"{size.way.name} on {sizing.types}: {size.memory.total_bytes / 2**30:.1f} GiB"
    head = f"# Written by shardwright: {words} of {size.memory.capacity_bytes / 2**30:.1f} a GPU.\n"
    command = start(trainer, sizing.job, sizing.cluster.gpus)
    return f"{head}# Start it with: {command}\n{yaml_text(RECIPES[trainer](task))}"


def start(trainer: str, job: Job, gpus: int) -> str:
    """Return the command that starts a recipe."""
    script = "sft" if job.preference is None else job.preference.loss
    return START[trainer].format(gpus=gpus, script=script)


def _without_recipe(job: Job, trainer: str) -> Iterator[Problem]:
    """Yield why a trainer has no recipe for a loss over preferences."""
    loss = None if job.preference is None else job.preference.loss
    if job.preference is not None and (loss not in PREFERENCES[trainer] or job.preference.by != "trl"):
        able = [name for name, losses in PREFERENCES.items() if loss in losses]
        hint = f"use --recipe {' or '.join(able)}" if able else "make a plan and export it"
        yield Problem("recipe", f"of {trainer} is not written for {job.preference.name}", hint)


def as_run(trainer: str | None, job: Job) -> Job:
    """Return a job as a trainer's recipe runs it, whatever is asked for: axolotl loads weights in 16 bits and updates
    them as they are (axolotl/monkeypatch/accelerate/fsdp2.py 0.19 too widens none), and TRL takes the logits in tiles
    (trl/trainer/sft_trainer.py 1.16: `add_fused_lm_head`)."""
    options = job.options
    if trainer == "axolotl" and job.precision == "bf16":
        options = replace(options, master_weights="none")
    if trainer == "trl" and job.preference is None:
        options = replace(options, loss="tiled")
    return replace(job, options=options)


def runnable(sizing: Sizing) -> Size | None:
    """Return the first way that fits of those that recipes are written for: all but DeepSpeed's, which `export --to
    deepspeed` writes: ZeRO-1, and optimizers in host memory without the shards that FSDP2 offloads; and all but shards
    of one GPU, which is started as one process without FSDP (accelerate/commands/launch.py 1.15)."""
    offloads = memory_facts(sizing.job.framework).weights_follow and sizing.job.optimizer not in ON_THE_GPU
    able = ("none", "zero3") if sizing.cluster.gpus > 1 else ("none",)
    fitting = (size for size in sizing.sizes if size.fits and size.way.sharding in able)
    return next((size for size in fitting if offloads or not size.way.offload), None)


def _repository(source: str) -> str:
    """Return where the weights are: of a preset the repository on the hub, else what the user said."""
    preset = find_preset(source)
    if preset is None:
        return source
    place = preset_source(preset).split(" ")[0]
    return place.removeprefix(HUB) if place.startswith(HUB) else source


def _axolotl(task: Task) -> dict[str, object]:
    job, adapter = task.job, task.adapter
    keys: dict[str, object] = {"base_model": task.source}
    if adapter is not None:
        keys |= {
            "adapter": "qlora" if adapter.frozen == "nf4" else "lora",
            "load_in_4bit": adapter.frozen == "nf4",
            "load_in_8bit": adapter.frozen == "int8",
            "lora_r": adapter.rank,
            "lora_alpha": round(adapter.scale * adapter.rank),
            "lora_dropout": 0.0,
            **({"lora_target_linear": True} if adapter.targets == LINEAR else {"lora_target_modules": task.modules}),
            **({"peft_use_dora": True} if adapter.dora else {}),
        }
    if job.preference is None:
        keys["datasets"] = [{"path": "tatsu-lab/alpaca", "type": "alpaca"}]
        keys |= {"sample_packing": True, "pad_to_sequence_len": True}
    else:
        rl, dataset = PREFERENCES["axolotl"][job.preference.loss]
        keys |= {"rl": rl, "datasets": [dataset]}
        keys |= {"precompute_ref_log_probs": True} if job.preference.precomputed else {}
    keys |= {
        "sequence_len": job.seq_len,
        "micro_batch_size": task.samples,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": task.way.recompute,
        **{name: job.precision == name for name in ("bf16", "fp16")},
        "attn_implementation": task.attention,
        "optimizer": OPTIMIZERS[job.optimizer],
        "learning_rate": 2e-4 if adapter else 2e-5,
        "num_epochs": 1,
        "output_dir": "./out",
    }
    if job.options.activation_offload == "inputs":
        keys["activation_offloading"] = "hidden_states"  # with `true` all activations, and nothing runs again
    if task.chunked:
        keys |= {"plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_fused_linear_cross_entropy": True}
    return keys | ({"fsdp_version": 2, "fsdp_config": _fsdp(task.way)} if task.way.sharding == "zero3" else {})


def _fsdp(way: TrainingWay) -> dict[str, object]:
    return FSDP | {"offload_params": way.offload > 0.0}


def _arguments(task: Task) -> dict[str, object]:
    """The fields of transformers' `TrainingArguments`, which TRL and LLaMA-Factory take."""
    keys: dict[str, object] = {
        "per_device_train_batch_size": task.samples,
        "gradient_accumulation_steps": 1,
        "bf16": task.job.precision == "bf16" and (task.job.masters or task.adapter is not None),
        "fp16": task.job.precision == "fp16",
        "optim": OPTIMIZERS[task.job.optimizer],
        "learning_rate": 2e-4 if task.adapter else 2e-5,
        "num_train_epochs": 1,
        "output_dir": "./out",
    }
    sharded: dict[str, object] = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, **_fsdp(task.way)}}
    return keys | (sharded if task.way.sharding == "zero3" else {})


def _trl(task: Task) -> dict[str, object]:
    adapter = task.adapter
    keys: dict[str, object] = {"model_name_or_path": task.source}
    if adapter is not None:
        names = task.modules
        keys |= {
            "use_peft": True,
            "lora_r": adapter.rank,
            "lora_alpha": round(adapter.scale * adapter.rank),
            "lora_dropout": 0.0,
            "lora_target_modules": [names] if isinstance(names, str) else _as_trl_reads(names),
            "use_dora": adapter.dora,
            "load_in_4bit": adapter.frozen == "nf4",
            "load_in_8bit": adapter.frozen == "int8",
        }
        if adapter.frozen == "nf4":
            keys |= {"bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True, "bnb_4bit_quant_storage": "bfloat16"}
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(task.job.precision, "float32")
    kept = adapter or not task.job.masters
    preference = task.job.preference
    keys |= {"precompute_ref_log_probs": True} if preference is not None and preference.precomputed else {}
    return keys | {
        "dtype": dtype if kept else "float32",
        "attn_implementation": task.attention,
        "dataset_name": "trl-lib/Capybara" if preference is None else PREFERENCES["trl"][preference.loss],
        "max_length": task.job.seq_len,
        **({"packing": True} if preference is None else {}),
        "gradient_checkpointing": task.way.recompute,
        **({"activation_offloading": True} if task.job.options.activation_offload == "inputs" else {}),
        **_arguments(task),
    }


def _as_trl_reads(names: list[str]) -> list[str]:
    """Return the names of matrices for TRL, which makes a word of a list of one, and PEFT takes a word for an
    expression (trl/trainer/model_config.py 1.16: `__post_init__`)."""
    return names if len(names) > 1 else [rf".*\.{names[0]}"]


def _llamafactory(task: Task) -> dict[str, object]:
    adapter = task.adapter
    keys: dict[str, object] = {"model_name_or_path": task.source, "stage": "sft", "do_train": True}
    keys["finetuning_type"] = "full" if adapter is None else "lora"
    if adapter is not None:
        keys |= {
            "lora_rank": adapter.rank,
            "lora_alpha": round(adapter.scale * adapter.rank),
            "lora_dropout": 0.0,
            "lora_target": "all" if adapter.targets == LINEAR else ",".join(task.modules),
            "use_dora": adapter.dora,
        }
        if adapter.quantised:
            keys |= {"quantization_bit": 4 if adapter.frozen == "nf4" else 8, "quantization_method": "bnb"}
        if adapter.frozen == "nf4":
            keys |= {"quantization_type": "nf4", "double_quantization": True}
    return keys | {
        "dataset": "alpaca_en_demo",
        "template": "default",
        "cutoff_len": task.job.seq_len,
        "packing": True,
        "flash_attn": "fa2" if task.flash_attention else "sdpa",
        "disable_gradient_checkpointing": not task.way.recompute,
        **({"use_unsloth_gc": True} if task.job.options.activation_offload == "inputs" else {}),
        **({"enable_liger_kernel": True} if task.chunked else {}),
        **({} if task.job.masters or adapter else {"pure_bf16": True}),
        **_arguments(task),
    }


RECIPES: Mapping[str, Callable[[Task], dict[str, object]]] = {
    "axolotl": _axolotl, "trl": _trl, "llamafactory": _llamafactory,
}  # fmt: skip
# Losses over preferences that recipes are written for: of TRL's scripts with the datasets that their own examples name,
# of axolotl with the word for `rl` and the examples of its documentation (docs/rlhf.qmd).
ORCA = {"path": "Intel/orca_dpo_pairs", "split": "train", "type": "chatml.intel"}
CLEANED = "argilla/ultrafeedback-binarized-preferences-cleaned"
PREFERENCES: Mapping[str, Mapping[str, Any]] = {
    "trl": {"dpo": "trl-lib/ultrafeedback_binarized", "kto": "trl-lib/kto-mix-14k"},
    "axolotl": {
        "dpo": ("dpo", ORCA),
        "cpo": ("simpo", ORCA),
        "orpo": ("orpo", {"path": CLEANED, "type": "chat_template.argilla"}),
        "kto": ("kto", {"path": f"{CLEANED}-kto", "split": "train", "type": "llama3.ultra"}),
    },
    "llamafactory": {},
}
START = {
    "axolotl": "axolotl train recipe.yaml",
    "trl": "accelerate launch --num_processes {gpus} --module trl.scripts.{script} --config recipe.yaml",
    "llamafactory": "FORCE_TORCHRUN=1 llamafactory-cli train recipe.yaml",
}
