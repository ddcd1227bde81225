"""The keys that each trainer's own configuration has, read off the syntax trees of its package. Nothing is imported.

    tests/targets/schemas.sh

fills a folder with the unpacked packages, one folder each, and runs this module on it. Writes
`tests/importers/schemas/<trainer>.txt`: the version, then a key a line with its default where that is a literal.
`tests/importers/test_keys.py` holds the tables of `importers/data` against these lists.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from shardwright.importers.paths import flattened

OUT = Path(__file__).parents[1] / "importers" / "schemas"
UNSAID = object()


@dataclass(frozen=True)
class Section:
    """The fields of the classes `names` of files of a package, under `prefix`; those of their bases in these files
    too."""

    files: str
    names: str
    prefix: str = ""


@dataclass(frozen=True)
class Schema:
    """A trainer's packages, with the sections of its configuration, files with an `argparse` parser, files with
    `get_scalar_param(…, NAME)` of DeepSpeed's, constructors whose parameters are keys, files that have them all where
    nothing else says which there are, and files that ask `cfg.get(NAME, default)` for the keys of a model."""

    packages: tuple[str, ...]
    sections: tuple[Section, ...] = ()
    parsers: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    constructors: tuple[Section, ...] = ()
    configurations: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


BRIDGE = "megatron_bridge/megatron/bridge"
CORE = "megatron_core/megatron"
CONTAINER = (
    f"{BRIDGE}/training/*.py {CORE}/training/config/*.py {CORE}/training/*.py {CORE}/core/*/*.py {CORE}/core/*.py"
)
TITAN = "torchtitan/torchtitan"
NEMO = "nemo_toolkit/nemo"
NEMO1 = "nemo_toolkit1/nemo/collections/nlp/models/language_modeling"
MPT = "llm_foundry/llmfoundry/models/mpt/configuration_mpt.py"
SCHEMAS = {
    "transformers": Schema(
        packages=("transformers",),
        sections=(Section("transformers/transformers/training_args.py", "TrainingArguments"),),
    ),
    "trl": Schema(
        packages=("trl",),
        sections=(
            Section(
                "trl/trl/trainer/*_config.py trl/trl/scripts/utils.py",
                "_BaseConfig SFTConfig DPOConfig KTOConfig GRPOConfig RLOOConfig RewardConfig DistillationConfig "
                "ModelConfig ScriptArguments DatasetMixtureConfig",
            ),
        ),
    ),
    "llamafactory": Schema(
        packages=("llamafactory",),
        sections=(
            Section(
                "llamafactory/llamafactory/hparams/*_args.py",
                "ModelArguments DataArguments TrainingArguments FinetuningArguments GeneratingArguments",
            ),
        ),
    ),
    "axolotl": Schema(
        packages=("axolotl",),
        sections=(
            Section("axolotl/axolotl/utils/schemas/*.py", "AxolotlInputConfig"),
            Section("axolotl/axolotl/utils/schemas/fsdp.py", "FSDPConfig", "fsdp_config"),
        ),
    ),
    "accelerate": Schema(
        packages=("accelerate",),
        sections=(Section("accelerate/accelerate/commands/config/config_args.py", "BaseConfig ClusterConfig"),),
        parsers=("accelerate/accelerate/commands/launch.py",),
    ),
    "deepspeed": Schema(
        packages=("deepspeed",),
        sections=(
            Section("deepspeed/deepspeed/runtime/zero/config.py", "DeepSpeedZeroConfig", "zero_optimization"),
            Section(
                "deepspeed/deepspeed/runtime/zero/offload_config.py",
                "DeepSpeedZeroOffloadParamConfig",
                "zero_optimization.offload_param",
            ),
            Section(
                "deepspeed/deepspeed/runtime/zero/offload_config.py",
                "DeepSpeedZeroOffloadOptimizerConfig",
                "zero_optimization.offload_optimizer",
            ),
            Section("deepspeed/deepspeed/runtime/precision_config.py", "DeepSpeedBF16Config", "bf16"),
            Section("deepspeed/deepspeed/runtime/precision_config.py", "DeepSpeedFP16Config", "fp16"),
            Section("deepspeed/deepspeed/runtime/tensor_parallel/config.py", "TPTrainingConfig", "tensor_parallel"),
        ),
        constants=(
            "deepspeed/deepspeed/runtime/config.py",
            "deepspeed/deepspeed/*/config.py",
            "deepspeed/deepspeed/runtime/activation_checkpointing/config.py",
        ),
    ),
    "torchtitan": Schema(
        packages=("torchtitan022", "torchtitan"),
        sections=(
            Section("torchtitan022/torchtitan/config/job_config.py", "JobConfig"),
            Section(f"{TITAN}/config/configs.py", "TrainingConfig", "training"),
            Section(f"{TITAN}/config/configs.py", "ParallelismConfig", "parallelism"),
            Section(f"{TITAN}/config/configs.py", "CompileConfig", "compile"),
            Section(f"{TITAN}/config/configs.py", "CommConfig", "comm"),
            Section(f"{TITAN}/config/configs.py", "DebugConfig", "debug"),
            Section(f"{TITAN}/trainer.py", "Trainer.Config"),
            Section(f"{TITAN}/distributed/activation_checkpoint.py", "MemoryBudgetAC.Config", "activation_checkpoint"),
            Section(f"{TITAN}/distributed/activation_checkpoint.py", "SelectiveAC.Config", "activation_checkpoint"),
        ),
    ),
    "bridge": Schema(
        packages=("megatron_bridge", "megatron_core"),
        sections=(
            Section(CONTAINER, "ConfigContainer"),
            Section(CONTAINER, "TrainingConfig", "train"),
            Section(CONTAINER, "OptimizerConfig", "optimizer"),
            Section(CONTAINER, "DistributedDataParallelConfig", "ddp"),
            Section(CONTAINER, "MixedPrecisionConfig", "mixed_precision"),
            Section(CONTAINER, "CommOverlapConfig", "comm_overlap"),
            Section(CONTAINER, "CheckpointConfig", "checkpoint"),
            Section(CONTAINER, "DistributedInitConfig", "dist"),
            Section(f"{BRIDGE}/models/*.py {CONTAINER}", "GPTModelProvider MLATransformerConfig", "model"),
        ),
    ),
    "nemo": Schema(
        packages=("nemo_toolkit",),
        constructors=(
            Section(
                f"{NEMO}/lightning/pytorch/strategies/megatron_strategy.py", "MegatronStrategy", "trainer.strategy"
            ),
            Section(f"{NEMO}/lightning/pytorch/plugins/mixed_precision.py", "MegatronMixedPrecision", "mixed"),
            Section(f"{NEMO}/collections/llm/gpt/data/mock.py", "MockDataModule", "train"),
            Section(f"{NEMO}/collections/llm/gpt/data/pre_training.py", "PreTrainingDataModule", "train"),
            Section(f"{NEMO}/lightning/pytorch/callbacks/megatron_comm_overlap.py", "MegatronCommOverlapCallback"),
        ),
    ),
    "nemo1": Schema(
        packages=("nemo_toolkit1",),
        readers=tuple(f"{NEMO1}/{name}" for name in ("megatron_gpt_model.py", "megatron_base_model.py")),
    ),
    "foundry": Schema(
        packages=("llm_foundry", "mosaicml"),
        sections=(
            Section("llm_foundry/llmfoundry/utils/config_utils.py", "TrainConfig"),
            Section("mosaicml/composer/utils/parallelism.py", "FSDPConfig", "fsdp_config"),
        ),
        constructors=(Section(MPT, "MPTConfig", "model"),),
    ),
    "torchtune": Schema(packages=("torchtune",), configurations=("torchtune/recipes/configs/*/*_full*.yaml",)),
    "megatron": Schema(
        packages=("megatron_core",),
        parsers=(f"{CORE}/training/arguments.py", f"{CORE}/training/config/*.py", f"{CORE}/core/transformer/*.py"),
    ),
}


def keys(folder: Path, schema: Schema) -> dict[str, Any]:
    """Return the keys of a trainer with their defaults."""
    found: dict[str, Any] = {}
    for section in schema.sections:
        classes: dict[str, list[ast.ClassDef]] = {}
        for name, node in _classes(folder, section.files):
            classes.setdefault(name, []).append(node)
        for name in section.names.split():
            _fields(name, section.prefix, classes, found)
    for file in _files(folder, " ".join(schema.parsers)):
        found |= dict(_arguments(_tree(file)))
    for file in _files(folder, " ".join(schema.constants)):
        found |= dict.fromkeys(_constants(file, folder), UNSAID)
    for section in schema.constructors:
        found |= dict(_parameters(folder, section))
    for file in _files(folder, " ".join(schema.configurations)):
        found |= {".".join(path): UNSAID for path, _ in flattened(yaml.safe_load(file.read_text(encoding="utf-8")))}
    for file in _files(folder, " ".join(schema.readers)):
        found = dict(_asked_of_model(_tree(file))) | found
    return found


def _asked_of_model(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the keys that a model asks its own section for, `self.cfg.get('bias', True)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(r"(self\.)?_?cfg\.get", ast.unparse(node.func)):
            key, *default = node.args
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield f"model.{key.value}", _literal(default[0]) if default else None


def _parameters(folder: Path, section: Section) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a class's constructor."""
    node = next(node for name, node in _classes(folder, section.files) if name == section.names)
    made = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__")
    names = [argument.arg for argument in (*made.args.args, *made.args.kwonlyargs) if argument.arg != "self"]
    usual = [None] * (len(made.args.args) - len(made.args.defaults)) + list(made.args.defaults)
    defaults = [*usual[len(usual) - len(made.args.args) + 1 :], *made.args.kw_defaults]
    for name, default in zip(names, defaults, strict=True):
        yield ".".join(filter(None, (section.prefix, name))), _literal(default)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _files(folder: Path, patterns: str) -> Iterator[Path]:
    for pattern in patterns.split():
        paths = sorted(folder.glob(pattern))
        assert paths, f"{pattern} is not in {folder}"
        yield from paths


def _classes(folder: Path, patterns: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes of files by name, inner ones as `Outer.Inner`."""
    for file in _files(folder, patterns):
        for node in _tree(file).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, node
                inner = (item for item in node.body if isinstance(item, ast.ClassDef))
                yield from ((f"{node.name}.{item.name}", item) for item in inner)


def _fields(name: str, prefix: str, classes: dict[str, list[ast.ClassDef]], found: dict[str, Any]) -> None:
    """Add the fields of all classes of a name (one often extends another of the same name) and of their bases. A field
    of torchtitan's `JobConfig` whose type is a class of these files is a section."""
    for base in {ast.unparse(base) for node in classes[name] for base in node.bases}:
        if base in classes and base != name:
            _fields(base, prefix, classes, found)
    for item in (item for node in classes[name] for item in node.body):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        key, kind = item.target.id, ast.unparse(item.annotation)
        if key.startswith("_") or "ClassVar" in kind:
            continue
        default, alias = _default(item.value)
        path = ".".join(filter(None, (prefix, alias or key)))
        if kind in classes and not prefix and name == "JobConfig":
            _fields(kind, path, classes, found)
        else:
            found[path] = default


def _default(value: ast.expr | None) -> tuple[Any, str | None]:
    """Return the literal default of a field, and the other name that it has."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rsplit(".", 1)[-1] in ("field", "Field"):
        named = {keyword.arg: keyword.value for keyword in value.keywords}
        inner = named.get("default", value.args[0] if value.args else None)
        alias = named.get("alias")
        return _literal(inner), str(alias.value) if isinstance(alias, ast.Constant) else None
    return _literal(value), None


def _literal(node: ast.expr | None) -> Any:
    try:
        return UNSAID if node is None else ast.literal_eval(node)
    except (ValueError, TypeError):
        return UNSAID


def _arguments(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield the options of an `argparse` parser, and the names in `argparse_meta` of a field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names: list[ast.expr] = node.args
            default = next((keyword.value for keyword in node.keywords if keyword.arg == "default"), None)
        elif isinstance(node, ast.Dict):
            pairs = {ast.unparse(key): value for key, value in zip(node.keys, node.values, strict=True) if key}
            listed, default = pairs.get("'arg_names'"), pairs.get("'default'")
            names = listed.elts if isinstance(listed, ast.List) else []
        else:
            continue
        texts = [str(item.value) for item in names if isinstance(item, ast.Constant)]
        yield from ((text.lstrip("-"), _literal(default)) for text in texts if text.startswith("--"))


def _constants(file: Path, folder: Path) -> Iterator[str]:
    """Yield the keys that DeepSpeed takes of the whole configuration, `param_dict`, by constants of its own."""
    known = _strings(folder)
    for node in ast.walk(_tree(file)):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript | ast.Compare) else ""
        match = re.match(
            r"get_(?:scalar|list|dict)_param\((?:self\._)?param_dict, (\w+)|(?:self\._)?param_dict\[([\w']+)\]"
            r"|(?:self\._)?param_dict\.get\(([\w']+)|([\w']+) in (?:self\._)?param_dict\b(?!\[)",
            text,
        )
        name = next(filter(None, match.groups()), "") if match else ""
        if name.startswith("'") or name in known:
            yield name.strip("'") if name.startswith("'") else known[name]


@cache
def _strings(folder: Path) -> dict[str, str]:
    """Return the constants of DeepSpeed that are names of keys."""
    return {
        target.id: node.value.value
        for file in folder.glob("deepspeed/deepspeed/**/*constants.py")
        for node in _tree(file).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def version_of(folder: Path, package: str) -> str:
    """Return the version of an unpacked package."""
    path = next(iter(sorted((folder / package).glob("**/*.dist-info/METADATA"))), folder / package / "PKG-INFO")
    return next(line.split()[1] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("Version"))


def main(folder: Path) -> None:
    OUT.mkdir(exist_ok=True)
    for trainer, schema in SCHEMAS.items():
        versions = ", ".join(f"{package} {version_of(folder, package)}" for package in schema.packages)
        lines = [
            f"{key} {json.dumps(default)}" if default is not UNSAID else key
            for key, default in sorted(keys(folder, schema).items())
        ]
        (OUT / f"{trainer}.txt").write_text("\n".join([f"# {versions}", *lines]) + "\n", encoding="utf-8")
        print(f"{trainer}: {len(lines)} keys of {versions}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
