"""Making of a `Job` from what a user says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast, get_args

from shardwright.errors import Problem, SpecError, bad, reject, suggestion
from shardwright.spec.adapter import Adapter, parse_adapter
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.job import PARTS, PROJECTED, Fp8Recipe, Job, Objective, Optimizer, Part, Precision
from shardwright.spec.options import DEFAULTS, VALUES, Options
from shardwright.spec.preference import Preference, parse_preference
from shardwright.spec.text.fields import number_problem, shown

COUNT = re.compile(
    r"(?P<number>[0-9]+(\.[0-9]*)?|\.[0-9]+)(e(?P<exponent>[+-]?[0-9]{1,3}))?\s*(?P<suffix>[kmbgt]?)", re.I
)
SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
MOST_TOKENS = 1e18
MOST_SAMPLES = 1e9
MOST_IMAGES, MOST_SIDE, MOST_SECONDS = 1e4, 100_000, 1e6


def parse_count(text: str | float, path: str = "count") -> float:
    """Return the number that `1.5T`, `300B`, `20M`, `4k`, `2e12` or a plain number stands for.

    Raises SpecError, placed at `path`, for anything else, and for what is not finite and above zero.
    """
    value: object = text
    if isinstance(text, str):
        match = COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
        if match is None:
            raise bad(path, f"{shown(text)} is no number", "write 1.5T, 300B, 20M or 2e12")
        value = float(f"{match['number']}e{match['exponent'] or 0}") * SUFFIXES[match["suffix"].casefold()]
    problem = number_problem(value, most=MOST_TOKENS)
    if problem:
        raise bad(path, *problem)
    return float(cast("float", value))


def make_job(
    *,
    global_batch: int,
    seq_len: int,
    tokens: float | str | None = None,
    steps: float | None = None,
    precision: str = "bf16",
    fp8_recipe: str | None = None,
    optimizer: str = "adam",
    framework: str = "megatron",
    objective: str = "time",
    budget_dollars: float | None = None,
    deadline_hours: float | None = None,
    document_tokens: float | None = None,
    adapter: str | None = None,
    adapter_targets: str | Sequence[str] | None = None,
    master_weights: str | None = None,
    preference: str | None = None,
    images_per_sequence: int | None = None,
    image_size: int | str | None = None,
    sounds_per_sequence: int | None = None,
    sound_seconds: float | None = None,
    freeze: str | Sequence[str] | None = None,
    encoder_seq_len: int | None = None,
) -> Job:
    """Return the job, checked. `tokens` may be a human form such as "1.5T"; `steps` says the same in iterations.
    `adapter` is what is trained beside frozen weights, such as `lora:16` or `qlora:16` (`spec.adapter.parse_adapter`),
    beside the matrices that `adapter_targets` names. `optimizer` may have a rank, where it projects gradients:
    `galore:64`. `master_weights` "none": the 16-bit weights are updated as they
    are. `preference` is a loss over preferences (`spec.preference.parse_preference`): a sample of `dpo` is a pair of
    sequences of `seq_len`. A sequence of a model with a tower has `images_per_sequence` images of `image_size` pixels,
    448 or "1280x720" (width and height), and one that hears `sounds_per_sequence` of `sound_seconds`; the parts that
    `freeze` names, of vision, audio, projector and language, keep their weights; of a model of speech, encoder. An
    encoder-decoder has `seq_len` tokens in its decoder, and `encoder_seq_len` in its encoder of text, as many where
    that is not said.

    Raises SpecError with every problem: sizes that are not whole and positive, tokens together with steps, unknown
    names, an FP8 recipe without FP8, and a budget or deadline of a run whose length is unknown.
    """
    problems: list[Problem] = []
    _check_number(problems, "global_batch", global_batch, whole=True, most=MOST_SAMPLES)
    _check_number(problems, "seq_len", seq_len, whole=True, most=MOST_SAMPLES)
    for name, value in (("budget_dollars", budget_dollars), ("deadline_hours", deadline_hours), ("steps", steps)):
        if value is not None:
            _check_number(problems, name, value)
            if name != "steps" and tokens is None and steps is None:
                problems.append(
                    Problem(name, "bounds a run whose length is unknown", "give `tokens=` (or `steps=`) as well")
                )
    if document_tokens is not None:
        _check_number(problems, "document_tokens", document_tokens)
    optimizer, rank = _optimizer(problems, optimizer)
    problems += _name_problems(precision, fp8_recipe, optimizer, framework, objective)
    if master_weights not in (None, *VALUES["master_weights"]):
        problems.append(_unknown("master_weights", master_weights, VALUES["master_weights"]))
    if tokens is not None and steps is not None:
        problems.append(Problem("steps", "says again how long the run is", "give `tokens=` or `steps=`, not both"))
    for name, number, most in (
        ("images_per_sequence", images_per_sequence, MOST_IMAGES),
        ("sounds_per_sequence", sounds_per_sequence, MOST_IMAGES),
        ("sound_seconds", sound_seconds, MOST_SECONDS),
        ("encoder_seq_len", encoder_seq_len, MOST_SAMPLES),
    ):
        if number is not None:
            _check_number(problems, name, number, whole=name != "sound_seconds", most=most)
    pixels, frozen = _image_size(problems, image_size), _frozen(problems, freeze)
    run_tokens = _tokens(problems, tokens)
    beside = _adapter(problems, adapter, adapter_targets, precision)
    preferred = _preference(problems, preference)
    reject(problems)
    job = Job(
        global_batch=int(global_batch),
        seq_len=int(seq_len),
        tokens=run_tokens,
        precision=cast("Precision", precision),
        fp8_recipe=cast("Fp8Recipe | None", fp8_recipe),
        optimizer=cast("Optimizer", optimizer),
        optimizer_rank=rank,
        framework=framework,
        objective=cast("Objective", objective),
        budget_dollars=None if budget_dollars is None else float(budget_dollars),
        deadline_hours=None if deadline_hours is None else float(deadline_hours),
        document_tokens=None if document_tokens is None else float(document_tokens),
        options=Options(master_weights="none") if master_weights == "none" else DEFAULTS,
        adapter=beside,
        preference=preferred,
        images_per_sequence=None if images_per_sequence is None else int(images_per_sequence),
        image_size=pixels,
        sounds_per_sequence=None if sounds_per_sequence is None else int(sounds_per_sequence),
        sound_seconds=None if sound_seconds is None else float(sound_seconds),
        freeze=frozen,
        encoder_seq_len=None if encoder_seq_len is None else int(encoder_seq_len),
    )
    job = job if steps is None else replace(job, tokens=float(steps) * job.tokens_per_iteration)
    if job.tokens is not None and job.tokens < job.tokens_per_iteration:
        said = "tokens" if steps is None else "steps"
        message = f"{job.tokens:,.0f} tokens are less than a step, which takes {job.tokens_per_iteration:,}"
        raise bad(said, message, "give a step or more")
    return job


def _preference(problems: list[Problem], text: str | None) -> Preference | None:
    """Return the loss over preferences, None where it is not said or wrong; the latter adds a problem."""
    if text is None:
        return None
    try:
        return parse_preference(str(text))
    except SpecError as error:
        problems.extend(error.problems)
    return None


def _optimizer(problems: list[Problem], words: str) -> tuple[str, int | None]:
    """Return an optimizer and its rank; a rank that is wrong or has no meaning adds a problem."""
    name, mark, rank = words.partition(":") if isinstance(words, str) else (words, "", "")
    if not mark:
        return name, None
    if name not in PROJECTED:
        problems.append(Problem("optimizer", f"{name} has no rank", f"write `{name}`, or `galore:{rank or 128}`"))
    elif not rank.isdecimal() or int(rank) < 1:
        problems.append(
            Problem("optimizer", f"the rank {shown(rank)} is no whole number from 1", f"write `{name}:128`")
        )
    else:
        return name, int(rank)
    return name, None


def _image_size(problems: list[Problem], size: int | str | None) -> tuple[int, int] | None:
    """Return height and width of images, None where not said or wrong; the latter adds a problem."""
    if size is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})(?:[x×]([0-9]{1,6}))?", str(size).strip().casefold())
    sides = (int(match[2] or match[1]), int(match[1])) if match else (0, 0)
    if not all(0 < side <= MOST_SIDE for side in sides):
        hint = "write pixels of a side, 448, or width and height, 1280x720"
        problems.append(Problem("image_size", f"{shown(size)} is no size of images", hint))
        return None
    return sides


def _frozen(problems: list[Problem], parts: str | Sequence[str] | None) -> tuple[Part, ...] | None:
    """Return the parts of a tower that keep their weights, None for none; an unknown one adds a problem."""
    names = parts.replace(",", "+").split("+") if isinstance(parts, str) else list(parts or ())
    problems += [_unknown("freeze", name, PARTS) for name in names if name not in PARTS]
    return tuple(part for part in PARTS if part in names) or None


def _adapter(
    problems: list[Problem], text: str | None, targets: str | Sequence[str] | None, precision: str
) -> Adapter | None:
    """Return the adapter of the run, or None where there is none or it is wrong; the latter adds a problem."""
    if text is None:
        if targets is not None:
            problems.append(Problem("adapter_targets", "names matrices for no adapter", "give `adapter=` as well"))
        return None
    try:
        adapter = parse_adapter(text, targets)
    except SpecError as error:
        problems.extend(error.problems)
        return None
    if adapter.quantised and precision not in ("bf16", "fp16"):
        message = f"is {adapter.name}, which computes in 16 bits, with precision {precision}"
        problems.append(Problem("adapter", message, "use bf16 or fp16"))
    return adapter


def _tokens(problems: list[Problem], tokens: float | str | None) -> float | None:
    """Return the tokens of the run, or None where unknown or wrong; the latter adds a problem."""
    if tokens is None:
        return None
    try:
        return parse_count(tokens, "tokens")
    except SpecError as error:
        problems.extend(error.problems)
    return None


def _check_number(
    problems: list[Problem], name: str, value: object, *, whole: bool = False, most: float = MOST_TOKENS
) -> None:
    problem = number_problem(value, most=most)
    if problem is None and whole and not float(cast("float", value)).is_integer():
        problem = (f"expected a whole number, got {shown(value)}", "round it")
    if problem:
        problems.append(Problem(name, *problem))


def _name_problems(
    precision: str, fp8_recipe: str | None, optimizer: str, framework: str, objective: str
) -> Iterator[Problem]:
    for name, word, known in (
        ("precision", precision, get_args(Precision)),
        ("optimizer", optimizer, get_args(Optimizer)),
        ("framework", framework, framework_names()),
        ("objective", objective, get_args(Objective)),
        ("fp8_recipe", fp8_recipe, (None, *get_args(Fp8Recipe))),
    ):
        if word not in known:
            yield _unknown(name, word, known)
    if fp8_recipe is not None and precision != "fp8":
        yield Problem("fp8_recipe", f"has no meaning with precision {shown(precision)}", "set precision fp8")


def _unknown(name: str, word: object, known: tuple[str | None, ...]) -> Problem:
    names = [option for option in known if option is not None]
    if not isinstance(word, str):
        return Problem(name, f"expected a name, got {shown(word)}", suggestion("", names))
    return Problem(name, f"unknown {name.replace('_', ' ')} {shown(word)}", suggestion(word, names))
