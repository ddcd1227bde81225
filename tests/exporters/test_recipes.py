"""Recipes: every key is one of the trainer's schema, and says what was sized."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.cli.running import answered, refused, run

from shardwright import SpecError, load_cluster, load_model, make_job
from shardwright.exporters.hugging_face import adapter_config
from shardwright.exporters.recipes import RECIPES, recipe
from shardwright.search.sizing import Sizing, fit
from shardwright.spec.adapter import Adapter, parse_adapter
from shardwright.spec.catalog.gpus import gpus

SCHEMAS = Path(__file__).parents[1] / "importers" / "schemas"
BESIDE = {"trl": ("transformers",), "llamafactory": ("transformers",)}  # they take the Trainer's arguments too


def keys_of(trainer: str) -> set[str]:
    names = (trainer, *BESIDE.get(trainer, ()))
    lines = [line for name in names for line in (SCHEMAS / f"{name}.txt").read_text(encoding="utf-8").splitlines()]
    return {line.split()[0] for line in lines if line and not line.startswith("#")}


def sized(cluster: str, adapter: str | None = None, model: str = "llama-3.1-8b", **changes: object) -> Sizing:
    machines = load_cluster(cluster)
    options = {"global_batch": machines.gpus, "seq_len": 1024, "framework": "fsdp", "adapter": adapter} | changes
    return fit(load_model(model), machines, make_job(**options))


CASES = {
    "full": ("1x8xH200", None), "full, sharded": ("1x8xA100-SXM-80", None), "8 bits": ("1x1xRTX4090", None),
    "4 bits": ("1x1xT4", None), "DoRA": ("1x1xA100-SXM-40", "dora:8"), "QDoRA": ("1x1xRTX4080", "dora:32"),
}  # fmt: skip


@pytest.mark.parametrize("trainer", RECIPES)
@pytest.mark.parametrize("case", CASES)
def test_every_key_is_the_trainers(case: str, trainer: str) -> None:
    cluster, adapter = CASES[case]
    sizing = sized(cluster, adapter, precision="fp16" if "T4" in cluster else "bf16")
    document = yaml.safe_load(recipe(sizing, "llama-3.1-8b", trainer))
    assert not set(document) - keys_of(trainer)
    inside = {f"fsdp_config.{key}" for key in document.get("fsdp_config", {})} if trainer == "axolotl" else set()
    assert not inside - keys_of(trainer)
    assert "meta-llama/Llama-3.1-8B" in document.values() and 1024 in document.values()


ARCHITECTURES = {gpu.architecture: gpu for gpu in gpus().values() if gpu.peak("fp16") and gpu.memory_bytes > 16e9}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flash_attention_is_asked_of_gpus_that_have_it(architecture: str) -> None:
    """Ampere and newer, in the README of flash-attn; and other makers, who have their own."""
    sizing = sized(f"1x1x{ARCHITECTURES[architecture].name}", "qlora:8", model="llama-3.2-1b", precision="fp16")
    documents = {trainer: yaml.safe_load(recipe(sizing, "llama-3.2-1b", trainer)) for trainer in RECIPES}
    words = {document.get("attn_implementation") or document["flash_attn"] for document in documents.values()}
    assert words == ({"sdpa"} if architecture in {"Pascal", "Volta", "Turing"} else {"flash_attention_2", "fa2"})


@pytest.mark.parametrize(("trainer", "rank"), [("axolotl", "lora_r"), ("trl", "lora_r"), ("llamafactory", "lora_rank")])
def test_a_recipe_says_what_was_sized(trainer: str, rank: str) -> None:
    sizing = sized("1x1xRTX4090", "lora:64", global_batch=2)
    document = yaml.safe_load(recipe(sizing, "llama-3.1-8b", trainer))
    assert document[rank] == 64 and 2 in (document.get("micro_batch_size"), document.get("per_device_train_batch_size"))
    assert document.get("load_in_8bit") or document.get("quantization_bit") == 8
    some = sized("1x1xRTX4090", "lora:8", adapter_targets="q_proj+v_proj")
    assert "v_proj" in recipe(some, "llama-3.1-8b", trainer) and "o_proj" not in recipe(some, "llama-3.1-8b", trainer)


def test_no_recipe_where_nothing_fits_or_nobody_writes_it() -> None:
    with pytest.raises(SpecError, match="fits"):
        recipe(sized("1x1xT4", seq_len=65536, precision="fp16"), "llama-3.1-8b", "trl")
    with pytest.raises(SpecError, match="not written"):
        recipe(sized("1x1xRTX4090"), "llama-3.1-8b", "torchtune")


def test_the_command_writes_it(tmp_path: Path) -> None:
    asked = ["fit", "llama-3.1-8b", "--gpu", "RTX4090", "--recipe", "axolotl"]
    text, file = run(asked).out, tmp_path / "recipe.yaml"
    assert yaml.safe_load(text)["adapter"] == "lora"
    beside = run([*asked, "--out", str(file)])
    assert file.read_text(encoding="utf-8").strip() == text.strip() and "way to train" in beside.out
    assert answered([*asked, "--json"])["recipe"].strip() == text.strip()
    assert "axolotl" in refused(run([*asked[:-1], "axolot"]))


def test_peft_and_bitsandbytes_are_told_of_adapters_by_name() -> None:
    llama, deepseek, mixtral, neox = map(load_model, ("llama-3.1-8b", "deepseek-v3", "mixtral-8x7b", "pythia-1b"))
    some = parse_adapter("lora:8", "q_proj+v_proj")
    assert adapter_config(llama, some)["target_modules"] == ["q_proj", "v_proj"]
    assert adapter_config(deepseek, some)["target_modules"] == ["q_a_proj", "q_b_proj", "kv_b_proj"]
    assert adapter_config(neox, Adapter())["target_modules"] == "all-linear"
    assert "target_parameters" not in adapter_config(mixtral, Adapter())
    assert adapter_config(mixtral, parse_adapter("lora:8", "all"))["target_parameters"]
    assert (
        adapter_config(llama, parse_adapter("dora:4"))["use_dora"] and adapter_config(llama, some)["lora_alpha"] == 16
    )


@pytest.mark.parametrize("trainer", RECIPES)
def test_two_cards_of_24_gb_train_70b_in_four_bits_with_weights_on_the_host(trainer: str) -> None:
    cards, job = load_cluster("1x2xRTX4090"), make_job(global_batch=2, seq_len=512, framework="fsdp", adapter="lora:8")
    sizing = fit(load_model("llama-3-70b"), cards, job)
    if trainer == "trl":  # puts all 4-bit weights onto each GPU first
        with pytest.raises(SpecError, match="GiB of 4-bit weights on each GPU"):
            recipe(sizing, "llama-3-70b", trainer)
        return
    document = yaml.safe_load(recipe(sizing, "llama-3-70b", trainer))
    assert document["fsdp_config"]["offload_params"] is True
    assert "qlora" in document.values() or document.get("load_in_4bit") or document.get("quantization_bit") == 4


@pytest.mark.parametrize("trainer", RECIPES)
@pytest.mark.parametrize("cluster", ["1x(2xRTX4090+1xRTX3090)", "1x1xRTX4090+1x2xRTX3090", "1x2xRTX4090"])
def test_the_head_names_all_gpus(cluster: str, trainer: str) -> None:
    sizing = sized(cluster)
    head = recipe(sizing, "llama-3.1-8b", trainer).splitlines()[0]
    assert all(f"{pool.gpus} {pool.gpu.name}" in head for pool in sizing.cluster.pools)
    assert repr(sizing).splitlines()[0] == f"llama-3.1-8b on {head.split(' on ')[-1].split(':')[0]}"
