"""`evaluate --launch`: a plan from a file that starts training, whatever trainer it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from shardwright.errors import bad, suggestion
from shardwright.exporters.evaluation import cluster_said, evaluation_of, is_whole, model_said
from shardwright.exporters.hugging_face import ARGUMENTS
from shardwright.files import shipped_table
from shardwright.importers.adapters import beside_arguments
from shardwright.importers.configurations import (
    Question,
    dialect,
    named,
    of_configuration,
    of_megatron,
    of_nemo_1,
    of_own_file,
    of_python,
    of_torchtitan,
    of_trainer,
)
from shardwright.importers.launches import COMMANDS, Launch, launches
from shardwright.importers.megatron.flags import refuse_hidden
from shardwright.importers.megatron.read import Reading, decisive, reading_of_launch, several, training_of
from shardwright.importers.paths import first, literal, overridden, without
from shardwright.importers.python_values import Path as Fields
from shardwright.importers.python_values import python_values
from shardwright.importers.recipes import listed
from shardwright.importers.settings import BRIDGE_MODEL
from shardwright.importers.shell.read import ShellScript, read_script
from shardwright.importers.shell.unknown import is_known, shown
from shardwright.importers.tasks import task_of
from shardwright.importers.torchtitan import fields_of_python
from shardwright.importers.torchtune import RECIPES, runs
from shardwright.plans.document import from_document, load_plan
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.preference import Preference, parse_preference
from shardwright.spec.text.reading import YAML, parse_json, read_text, sought

TORCHTITAN = ("torchtitan.train", "torchtitan.experiments.train", "torchtitan/train.py")
MEGATRON = {"--num-layers", "--num-attention-heads"}  # which no other trainer is told on its command line
CONFIGURATIONS = (".json", *YAML, ".toml", ".py")
FILES = (".json", *YAML)
UNREAD = {"swift", "megatron", "xtuner", "litgpt", "colossalai"}  # commands of trainers that are not read
INDIRECT = re.compile(r"\$\{!|\beval\b")  # names of variables that are made while the script runs
PARAMETERS = re.compile(r"\$\{?[!#]?[@*#1-9]|\b(?:shift|getopts?|argparse|BASH_ARGV)\b")
OF_LAUNCHERS = ("CUDA_VISIBLE_DEVICES", "NNODES", "NPROC_PER_NODE", "WORLD_SIZE")  # which `launches` reads
OWN = {"composer": "foundry", "tune": "torchtune"}  # launchers of one trainer alone
LISTS = ("lora_target_modules", "lora_target_parameters", "lora_modules_to_save")  # several words behind them
TRAINERS = {"--per-device-train-batch-size", "--deepspeed", "--deepspeed-config", "--fsdp"}
SFT = re.compile(r"(?:^|/)(?:run_)?sft(?:_trainer)?\.py$")  # TRL's, and copies of it: open-r1, alignment-handbook
# The same of losses over preferences.
PAIRS = re.compile(r"(?:^|[/.])(?:run_|train_|trl_)?(?P<loss>dpo|ipo|kto|orpo|cpo|simpo|reward)(?:_\w+)?(?:\.py)?$")
LORA = re.compile(r"(?<![a-z])lora(?![a-z])")  # in the name of a program that trains adapters without being told
# What the configurations of Accelerate say that `trl` has by name (trl/accelerate_configs of 1.16.0). That for one GPU
# starts one process, whatever it says (accelerate/commands/launch.py: `simple_launcher`).
PROCESSES = "num_processes"
MOST_TRAININGS = 64  # of a script
EIGHT: Mapping[Fields, Any] = {(PROCESSES,): 8}
OF_TRL: Mapping[str, Mapping[Fields, Any]] = {
    "single_gpu": {("distributed_type",): "NO", (PROCESSES,): 1},
    "multi_gpu": {("distributed_type",): "MULTI_GPU", **EIGHT},
    "fsdp1": {("distributed_type",): "FSDP", ("fsdp_config", "fsdp_reshard_after_forward"): "FULL_SHARD", **EIGHT},
    "fsdp2": {("distributed_type",): "FSDP", ("fsdp_config", "fsdp_version"): 2, **EIGHT},
    **{
        f"zero{stage}": {("distributed_type",): "DEEPSPEED", ("deepspeed_config", "zero_stage"): stage, **EIGHT}
        for stage in (1, 2, 3)
    },
}
# Parts of programs and commands that tell whose keys their arguments are.
KINDS = {
    "llamafactory": ("llamafactory", "transformers", "accelerate"),
    "lmf": ("llamafactory", "transformers", "accelerate"),
    "axolotl": ("axolotl", "accelerate"),
    "trl": ("trl", "transformers", "accelerate"),
}


def plan_from_launch(
    path: Path,
    *,
    cluster: Cluster | None = None,
    model: Model | None = None,
    seq_len: int | None = None,
    preference: str | None = None,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Reading:
    """Return the plan that a file starts on `cluster`: a shell script, or the configuration of a trainer. A script that
    `export` wrote says itself on which cluster, with which model and length of samples; what is given goes before.

    Read are scripts that start Megatron-LM and what is made of it, torchtitan, Accelerate, DeepSpeed, Composer,
    torchtune and Trainers of Hugging Face; what a SkyPilot task, a job of Ray or a run of MosaicML's platform runs;
    DeepSpeed's JSON; Accelerate's YAML; arguments of a Trainer in either; YAML of NeMo, Megatron-Bridge, Megatron-LM,
    LLM Foundry and torchtune; recipes of NeMo 2 and Megatron-Bridge; torchtitan's TOML and Python. `arguments` and
    `environment` are those of a script; for a Python file the first argument names the function, further ones
    (`model.x=1`) override fields, as for YAML. `preference` is the loss of a script that does not say it by its name
    (`parse_preference`). Nothing is executed. Raises SpecError with every reason why no plan can be read, and for a
    `seq_len` other than the launch's own.
    """
    if seq_len is not None and seq_len < 1:
        raise bad("`seq_len=`", f"must be more than zero, got {seq_len}", "give the tokens of a sample")
    text = read_text(path)
    asked = None if preference is None else parse_preference(preference)
    question = _asked(text, path, cluster, model, seq_len, asked)
    reading = _reading(text, path.suffix.casefold(), question, arguments, environment or {})
    length = reading.plan.job.seq_len
    if seq_len is not None and length != seq_len:
        raise bad("`seq_len=`", f"is {seq_len}, but the launch says {length}", "leave it out, or mend the launch")
    return reading


def _reading(
    text: str, ending: str, question: Question, arguments: tuple[str, ...], environment: Mapping[str, str]
) -> Reading:
    with sought(text, question.name):
        task = task_of(text, question.name) if ending in YAML else None
        if ending in CONFIGURATIONS and task is None:
            if environment:
                message = f"is for scripts, and {question.name} is a configuration"
                raise bad(f"--env {next(iter(environment))}", message, "leave it out")
            return _as_asked(of_configuration(text, ending, arguments, question), question)
        lines, variables, beside = task or (text, {}, {})
        around = {**variables, **environment}
        script = read_script(lines, question.name, arguments=arguments, environment=around, folder=question.folder)
        _require_read(script, text, arguments, environment)
        if task is not None and _alone_under_ray(text, script):
            message = "starts a program of Python, which itself asks Ray for its workers"
            raise bad(question.name, message, "give what a worker runs, or describe the plan in a plan file")
        question = replace(question, files={**beside, **script.files}, why=script.reasons)
        return _as_asked(_of_script(script, question), question)


def _require_read(script: ShellScript, text: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Raise SpecError for variables that neither a script nor the file around it names, and for arguments where it
    reads none."""
    texts = [text, script.text, *script.called]
    words = {word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text)}
    computed = any(INDIRECT.search(text) for text in texts)
    for variable in environment:
        if not computed and variable not in (*words, *OF_LAUNCHERS):
            near = [word for word in words if word.isupper()]
            hint = suggestion(variable, near) if near else "leave it out"
            raise bad(f"--env {variable}", "the script names no such variable", hint)
    if arguments and not PARAMETERS.search(script.text):
        raise bad(
            shown(" ".join(arguments)), "the script reads no arguments", "leave them out, or use --env NAME=VALUE"
        )


def _as_asked(reading: Reading, question: Question) -> Reading:
    """Return what was read. Raises SpecError where it trains by another loss over preferences than is asked for."""
    asked, there = question.preference, reading.plan.job.preference
    if asked is not None and there != asked:
        message = f"is {asked.name}, and {question.name} trains by {'the next token' if there is None else there.name}"
        raise bad("--preference", message, "leave it out, or write it into the launch")
    return reading


def _asked(
    text: str,
    path: Path,
    cluster: Cluster | None,
    model: Model | None,
    seq_len: int | None,
    preference: Preference | None,
) -> Question:
    """Return what is asked of a file, with what its own line says where nothing is given. Raises SpecError without a
    cluster."""
    written = evaluation_of(text)
    if cluster is None and written.cluster is None:
        raise bad("--cluster", "is missing", "say on which machines: --cluster 32x8xA100-SXM-80")
    given = (
        (cluster, written.cluster and _called(written.cluster, "its cluster")),
        (model, written.model and _called(written.model, "its model")),
        (seq_len, written.seq_len and f"{written.seq_len} tokens a sample"),
        (preference, written.preference),
    )
    machines = cluster or cluster_said(written.cluster or "")
    there = {pool.gpu.name for pool in machines.pools}
    taken = ", ".join(str(said) for value, said in given if value is None and said)
    return Question(
        cluster=machines,
        model=model if model is not None or written.model is None else model_said(written.model),
        gpus=dict(written.gpus) if there.issuperset(gpu for gpu, _ in written.gpus) else {},
        seq_len=seq_len or written.seq_len,
        preference=preference or (None if written.preference is None else parse_preference(written.preference)),
        name=str(path),
        folder=path.parent,
        files={},
        notes=[f"taken from the file's own words to `evaluate`: {taken}"] if taken else [],
    )


def _called(said: str, whole: str) -> str:
    return whole if is_whole(said) else said


def _alone_under_ray(text: str, script: ShellScript) -> bool:
    """Whether all that a job of Ray starts are programs of Python, without a launcher."""
    started = launches(script)
    return "entrypoint" in text and bool(started) and all(launch.alone for launch in started)


def _of_script(script: ShellScript, question: Question) -> Reading:
    """Return the plan of what a script starts."""
    started = launches(script)
    for launch in started:
        if launch.program == "shardwright" and launch.arguments[:1] == ("train",):
            return _of_plan_file(launch.arguments[1] if len(launch.arguments) > 1 else "", question)
    training = [launch for launch in started if _trainer(launch)]
    if len({(launch.program, launch.arguments) for launch in training}) > 1:
        return _of_several(training, question)
    if training:
        return _of_launch(training[-1], _trainer(training[-1]), question)
    for launch in started:
        if (recipe := _bridge_recipe(launch, question)) is not None:
            gpus, left_open = launch.gpus(question.cluster)
            question.notes.extend(left_open)
            return of_python(recipe, launch.arguments, gpus, question)
    if not any(map(decisive, started)):
        commands = (command.words for command in script.started if command.words[0].rsplit("/", 1)[-1] in UNREAD)
        for program in (*(launch.program for launch in started), *(" ".join(words[:2]) for words in commands)):
            _refuse_program(program, question)
    job = None if question.seq_len is None else Job(global_batch=1, seq_len=question.seq_len)
    launch, cluster, model = training_of(started, question.name), question.cluster, question.model
    return reading_of_launch(launch, script, cluster=cluster, model=model, job=job, name=question.name)


def _of_several(training: Sequence[Launch], question: Question) -> Reading:
    """Return the plan of trainings that differ in what decides nothing, as a sweep over learning rates. Raises
    SpecError where their plans differ."""
    if len(training) > MOST_TRAININGS:
        raise several(training, question.name)
    readings = []
    for launch in training:
        apart = replace(question, problems=[], uncounted=[], notes=list(question.notes), folders=[])
        readings.append(_of_launch(launch, _trainer(launch), apart))
    if any(reading.plan != readings[0].plan for reading in readings):
        raise several(training, question.name)
    last = readings[-1]
    return replace(last, notes=(*last.notes, f"{len(training)} trainings are started, all of this plan"))


def _of_plan_file(file: str, question: Question) -> Reading:
    """Return the plan that a script has `shardwright train` run. Raises SpecError where its file is not beside it."""
    path = question.folder / file
    if file not in question.files and not path.is_file():
        message = f"{shown(file)}, which `shardwright train` runs, is not beside it"
        raise bad(question.name, message, "put the plan file beside the script, or evaluate it itself")
    text = question.files.get(file)
    plan = load_plan(path) if text is None else from_document(parse_json(text, file), file)
    return Reading(plan, (*question.notes, f"the plan is that of {shown(file)}, and so are its machines"), ())


def _bridge_recipe(launch: Launch, question: Question) -> str | None:
    """Return the text of the program that a launch starts, if it is a recipe of Megatron-Bridge beside the script."""
    path = question.folder / launch.program
    if path.suffix != ".py" or not is_known(launch.program) or not path.is_file():
        return None
    text = read_text(path)
    return text if "megatron.bridge" in text else None


def _trainer(launch: Launch) -> str:
    """Return which trainer a launch starts that is not Megatron-LM's."""
    given = {word.partition("=")[0].replace("_", "-") for word in launch.arguments}
    if launch.launcher in COMMANDS:
        return "transformers"
    if launch.launcher in OWN:
        return OWN[launch.launcher]
    if "--recipe" in given and launch.program.endswith("run_recipe.py"):
        return "bridge"
    if launch.program.endswith(TORCHTITAN) or given & {"--job.config-file", "--module"}:
        return "torchtitan"
    if given & MEGATRON or any(word.startswith("--tensor-model-parallel") for word in given):
        return ""
    with_file = any(word.endswith(FILES) for word in launch.arguments[:1]) or "--config" in given
    with_file = with_file and launch.launcher != "python"
    if launch.launcher == "accelerate" or given & TRAINERS or with_file or _kind(launch):
        return "transformers"
    return "nemo" if any(word.startswith("model.") and "=" in word for word in launch.arguments) else ""


def _of_launch(launch: Launch, trainer: str, question: Question) -> Reading:
    """Return the plan of a launch of another trainer, with the configuration that it names."""
    gpus, left_open = launch.gpus(question.cluster)
    question.notes.extend(left_open)
    if launch.launcher != "tune":  # whose recipes are known by name
        _refuse_program(launch.program, question)
    if trainer == "nemo":
        return of_nemo_1(launch.arguments, launch.program, gpus, question)
    if trainer in OWN.values():
        return _of_own(launch, trainer, gpus, question)
    arguments = _arguments(launch, question)
    if trainer == "bridge":
        return _of_recipe(str(first(arguments, "recipe")), launch, gpus, question)
    if trainer == "torchtitan":
        return of_torchtitan(_torchtitan_fields(arguments, question), gpus, question)
    if launch.alone and question.cluster.gpus > 1 and launch.processes is None:
        message = "python starts one process, which spreads its batch over the GPUs that it sees (nn.DataParallel)"
        raise bad(question.name, f"{message}: that is not described", "start it with torchrun, accelerate or deepspeed")
    fields = _accelerate_fields(launch, question) | _with_files(arguments, launch, question)
    if launch.launcher == "trl" and launch.processes is None and isinstance(count := first(fields, PROCESSES), int):
        gpus = count  # of the configuration of Accelerate, which goes before the GPUs of a machine
    if launch.launcher == "accelerate" and gpus is None and first(fields, PROCESSES, "num_machines") is None:
        gpus = launch.machine(question.cluster)  # accelerate/commands/launch.py: all devices that it sees
    if LORA.search(launch.program.rsplit("/", 1)[-1].casefold()):
        fields = {("use_peft",): True, **fields}
    if pairs := PAIRS.search(launch.program):
        fields = {("preference",): pairs["loss"], **fields}
    if launch.launcher == "deepspeed" and not _deepspeed_file(fields):
        hint = "evaluate that configuration, as JSON"
        raise bad(question.name, "the configuration of DeepSpeed is in the program that it starts", hint)
    return of_trainer(fields, KINDS.get(_kind(launch)) or dialect(fields), gpus, question, started=True)


def _of_own(launch: Launch, trainer: str, gpus: int | None, question: Question) -> Reading:
    """Return the plan of a launch by Composer or torchtune: a file, and `key=value` over it."""
    words = [part for word in launch.arguments for part in _parted(word)]
    place = words.index("--config") + 1 if "--config" in words else None
    files = [words[place]] if place is not None and place < len(words) else [w for w in words if w.endswith(YAML)]
    if not files:
        raise bad(question.name, f"names no configuration for {launch.launcher}", "name its YAML file")
    if trainer == "torchtune" and not files[0].endswith(YAML):
        message = f"{files[0]} is a configuration in torchtune's own package"
        raise bad(question.name, message, f"`tune cp {files[0]} my.yaml` writes it out: name that file")
    recipe = launch.program.rsplit("/", 1)[-1].removesuffix(".py")
    if trainer == "torchtune" and recipe not in RECIPES:
        message = f"the recipe {launch.program} is not read: rewards, distillation, QAT or one of your own"
        raise bad(question.name, message, f"give a launch of {', '.join(RECIPES)}")
    changes = [word for word in words if word.startswith("~") or ("=" in word and not word.startswith("-"))]
    values = overridden(named(files[0], question), changes)
    component, loss = (str(values.get((part, "_component_"), "")) for part in ("model", "loss"))
    if trainer == "torchtune" and not runs(recipe, component, loss):
        message = f"{recipe} does not train {component}" + (f" by {loss}" if loss else "")
        raise bad(question.name, message, "start it by a recipe of LoRA, or of DPO, or take a model without")
    return of_own_file(trainer, values, (), gpus, question)


def _parted(word: str) -> list[str]:
    """Return `--config=file` as two words."""
    key, sign, value = word.partition("=")
    return [key, value] if sign and key.startswith("-") else [word]


def _of_recipe(recipe: str, launch: Launch, gpus: int | None, question: Question) -> Reading:
    """Return the plan of a recipe of Megatron-Bridge that its own script runs by name, with `key=value` over it."""
    changes = [word for word in launch.arguments if "=" in word and not word.startswith("--")]
    built = listed("bridge", recipe, question.name)
    return of_megatron(overridden({**BRIDGE_MODEL, **built.values}, changes), built.model, question, gpus=gpus)


def _kind(launch: Launch) -> str:
    """Return the trainer whose program or command is started."""
    names = re.split(r"[-./]", f"{launch.launcher}.{launch.program}")
    by_name = SFT.search(launch.program) or PAIRS.search(launch.program)
    return "trl" if by_name else next((kind for kind in KINDS if kind in names), "")


def _deepspeed_file(fields: Mapping[Fields, Any]) -> bool:
    """Return whether a configuration of DeepSpeed is named."""
    names = [first(fields, leaf) for leaf in ("deepspeed", "deepspeed_config")]
    return any(isinstance(name, str) for name in names) or any(path[0] == "deepspeed" and path[1:] for path in fields)


def _refuse_program(program: str, question: Question) -> None:
    """Refuse programs that by their names train something else than a language model on texts, or are of a trainer that
    is not read."""
    stem = shown(program).removesuffix(".py")
    for row in shipped_table("shardwright.importers", "programs.csv"):
        if re.search(rf"(?:^|[/.]){row['pattern']}$", stem):
            raise bad(
                question.name,
                f"{shown(program)} {row['words']}",
                row["hint"] or "give a launch that trains a language model on texts",
            )


def _accelerate_fields(launch: Launch, question: Question) -> dict[Fields, Any]:
    """Return what a launch by Accelerate says: its configuration, and the options over it."""
    if launch.launcher != "accelerate":
        return {}
    file = launch.options.get("--config-file")
    fields = named(file, question) if file else {}
    if not file and not {"--multi-gpu", "--use-fsdp", "--use-deepspeed"} & set(launch.options):
        question.notes.append("no configuration of Accelerate is named: that of a machine is not known, none is taken")
    for switch, kind in (("--use-fsdp", "FSDP"), ("--use-deepspeed", "DEEPSPEED")):
        fields |= {("distributed_type",): kind} if switch in launch.options else {}
    options = {(key.lstrip("-").replace("-", "_"),): value for key, value in launch.options.items()}
    for path, value in options.items():
        fields = without(fields, path) | {path: literal(value) if is_known(value) else value}
    return {path: True if value == "" else value for path, value in fields.items() if path != ("config_file",)}


def _arguments(launch: Launch, question: Question) -> dict[Fields, Any]:
    """Return `--a.b c` and `--a=b` as fields."""
    overrides: dict[Fields, Any] = {}
    words = [*launch.arguments, "--"]
    position = 0
    while position < len(words) - 1:
        word, follower = words[position], words[position + 1]
        position += 1
        if not word.startswith("--"):
            refuse_hidden(word, question.name, question.problems, question.why)
            continue
        key, sign, value = word[2:].partition("=")
        several = [*takewhile(lambda follower: not follower.startswith("--"), words[position:])]
        if key.replace("-", "_") in LISTS and not sign and len(several) > 1:
            overrides[(key.replace("-", "_"),)] = several
            position += len(several)
            continue
        text = value if sign else "true" if follower.startswith("--") else follower
        position += not sign and text is follower
        overrides[tuple(key.replace("-", "_").split("."))] = literal(text) if is_known(text) else text
    return overrides


def _with_files(arguments: dict[Fields, Any], launch: Launch, question: Question) -> dict[Fields, Any]:
    """Return a program's arguments over the fields of the files that it is told, and `key=value` over both."""
    fields: list[Fields] = [("accelerate_config",), ("config",)]  # the first of TRL's command
    files = [str(arguments[key]) for key in fields if key in arguments]
    values = {str(value) for value in arguments.values()}
    loose = (word for word in launch.arguments if word.endswith(FILES) and not word.startswith("-"))
    files += [word for word in loose if word not in values]
    shipped = OF_TRL if launch.launcher == "trl" else {}
    read = {path: value for file in files for path, value in (shipped.get(file) or named(file, question)).items()}
    if any(Path(file).name == ARGUMENTS for file in files):
        read |= beside_arguments(question.folder)
    changes = [word for word in launch.arguments if "=" in word and not word.startswith("-") and word not in values]
    return overridden(read | {key: value for key, value in arguments.items() if key not in fields}, changes)


def _torchtitan_fields(arguments: dict[Fields, Any], question: Question) -> dict[Fields, Any]:
    file = first(arguments, "config_file")
    if file is not None:
        return named(str(file), question) | arguments
    module, function = str(first(arguments, "module")), first(arguments, "config")
    path = question.folder / (module.rsplit(".", 1)[-1] + ".py")
    if path.name not in question.files and not path.is_file():
        message = f"the configuration {function} of {module} is in another package"
        raise bad(question.name, message, f"put {path.name} beside the script, or evaluate it itself")
    text = question.files.get(path.name) or read_text(path)
    values = python_values(text, str(path), str(function) if function else None)
    return fields_of_python(values, path.absolute().parent.name, str(path)) | arguments
