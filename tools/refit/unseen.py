"""Runs that no constant has seen: published by people whose other runs are in no table of ours, and kept out of every
fit.

`data/unseen/runs.csv` has one a row: where it is published, model, cluster, framework, the settings that are published,
as `--set` takes them, and what was measured. What is not published is what the planner would choose.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import shardwright
from shardwright.commands import option
from shardwright.cost.memory.sizes import CONTEXT_BYTES
from shardwright.errors import bad
from shardwright.files import write_atomically
from shardwright.plans.plan import StageMemory
from shardwright.reports.accuracy import markdown_table
from shardwright.units import GIBIBYTE, GIGA, format_seconds

FOLDER = Path(__file__).parent / "data" / "unseen"
PAGE = Path(__file__).parents[2] / "docs" / "unseen-runs.md"
FAR = 0.25
FITS = (0.9, 0.01)
OF_JOB = ("adapter", "adapter_targets", "optimizer")  # no pins

LEAD = """# Runs that no constant has seen

<!-- Written by `python -m tools.refit unseen`; edit tools/refit/data/unseen/runs.csv instead. -->

What predictions are worth where nobody has measured is best asked of runs that came later, from people who have no run
in the tables that [constants are fitted to](calibration.md). These are all that were found with their settings, good
and bad; nothing is fitted to them. Each is predicted as `shardwright plan` does with what is published pinned by
`--set`; what is not published is what the planner would choose. Seconds are of an iteration; memory is the peak of the
fullest GPU as the source measured it: allocated, reserved, or what nvidia-smi shows, which is more."""
BESIDE = """What stands out: memory is near where the trainer is known; dense models are predicted well. Where the host
is slower than the GPU (tensor parallelism of PyTorch that is not compiled, hybrids of Mamba with many experts on each
GPU beside a Grace processor) its calls are counted ([decision 9](decisions/0009-terms-of-the-fit.md)); what such a
trainer checks and converts on the host beside them is not. CUDA graphs and hidden exchange are near on mixtures of
experts with plain attention (Hy3), in 16 and in 8 bits; latent attention with scores in 8 bits and AMD's newest kernels
are faster than predicted. Runs of torchtitan without compilation are taken as PyTorch's FSDP, as those of the tables
are; KempnerForge compiles, which FSDP's constants do not know. The two runs of Nemotron-3 Nano in 8 bits keep their
experts in 16, which is not priced: the plan that is predicted splits sequences to fit.

Fine-tuning on one GPU is near in time and memory. An update of several kernels (AdamW of PyTorch unless it is fused,
`foreach_adam`) has a copy of a moment, and DeepSpeed's has gradients three times: both were found here, and count now.
What is far off, and why as far as it is known:

* FSDP 1 beside adapters had up to 1.6 times the memory that is predicted (IBM), by something that grows with the tokens
  of a layer. With PyTorch 2.13 and transformers 5 it keeps what FSDP2 does, so that it is not priced.
* What an allocator reserves is not what tensors take: on cards that are nearly full up to 1.6 times as much (Answer.AI,
  whose short sequences are within 7 %), under ZeRO-3, as nvidia-smi shows it, up to 1.25 times.
* bitsandbytes of 2023 (LitGPT's QLoRA) had 1.4 times what is predicted, ms-swift beyond 2,048 tokens up to 1.5 times,
  where Qwen's own runs of the same models are within 7 %: causes not found.
* torchao shards the scales of four-bit weights, of which bitsandbytes has all on each GPU, as is priced; torchtune's
  recipe for 405B has one sequence a GPU, its table says two.
* Steps of few tokens wait for the host: what PEFT's adapters launch, and updates of many tensors, is not counted (Qwen
  1.8B with 256 tokens takes 2 to 3 times as long as predicted). Mixtures in transformers' loop over experts take 1.2 to
  1.6 times as long.

Left out is what the settings do not tell: torchtune's updates within the backward pass, which are not priced, and its
runs on A6000s; Qwen's of GPTQ weights, of trained embeddings and over two machines; LitGPT's under FSDP, which peak as
they load, and of models without a catalogue entry; Answer.AI's on cards whose links are not named, and times on its
RTX 3090s, whose links are slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenRun:
    """A run and its prediction: seconds of an iteration, peak bytes of a GPU (measured: None where not published, or
    where steps were of other sequences than that of the peak)."""

    source: str
    where: str
    name: str
    note: str
    seconds: float | None
    memory: float | None
    predicted_seconds: float
    low: float
    high: float
    predicted_memory: float

    @property
    def ratio(self) -> float | None:
        """Predicted over measured seconds."""
        return None if self.seconds is None else self.predicted_seconds / self.seconds

    @property
    def memory_ratio(self) -> float | None:
        """Predicted over measured memory."""
        return None if self.memory is None else self.predicted_memory / self.memory

    @property
    def inside(self) -> bool:
        """Whether the measured seconds lie in the 80 % interval."""
        return self.seconds is not None and self.low <= self.seconds <= self.high


def unseen_runs(path: Path = FOLDER / "runs.csv") -> tuple[dict[str, str], ...]:
    """Return the rows of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def predicted(row: Mapping[str, str]) -> UnseenRun:
    """Return a run with its prediction. Raises SpecError for settings that no plan has."""
    precision, _, recipe = row["precision"].partition(":")
    pins = {name: _value(value) for name, value in (pair.split("=") for pair in row["settings"].split())}
    of_job: dict[str, Any] = {name: str(pins.pop(name)) for name in OF_JOB if name in pins}
    job = shardwright.make_job(
        global_batch=int(row["global_batch"]),
        seq_len=int(row["seq_len"]),
        precision=precision,
        fp8_recipe=recipe or None,
        framework=row["framework"],
        **of_job,
    )
    model = str(FOLDER / row["model"]) if row["model"].endswith(".json") else row["model"]
    asked: dict[str, Any] = {"pins": pins, "framework": row["framework"], "top": 1}
    plans = next(  # it ran, so that it fits: where nothing is sure to, whatever might
        (plans for fit in FITS if (plans := shardwright.plan(model, row["cluster"], job, fit=fit, **asked).plans)), ()
    )
    if not plans or plans[0].prediction is None:
        raise bad(row["name"], "has no plan", "see what `shardwright plan` says of its settings")
    prediction = plans[0].prediction
    unit = GIBIBYTE if row["memory_kind"].startswith("GiB") else GIGA
    return UnseenRun(
        source=row["source"],
        where=row["where"],
        name=row["name"],
        note=row["note"],
        seconds=float(row["seconds"]) if row["seconds"] else None,
        memory=float(row["memory_gb"]) * unit if row["memory_gb"] else None,
        predicted_seconds=prediction.iteration_seconds,
        low=prediction.interval[0],
        high=prediction.interval[1],
        predicted_memory=max(_counted(stage, row["memory_kind"]) for stages in prediction.memory for stage in stages),
    )


def _counted(stage: StageMemory, kind: str) -> float:
    """Return what of the memory of a GPU a source counts: tensors, what their allocator has, or all of the process."""
    beside = {"allocated": stage.context_bytes, "reserved": CONTEXT_BYTES}
    return stage.total_bytes - next((size for word, size in beside.items() if kind.endswith(word)), 0.0)


def _value(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def unseen_page(runs: Sequence[UnseenRun]) -> str:
    """Return the page of the runs as Markdown."""
    by_source = [(source, list(of)) for source, of in groupby(runs, key=lambda run: run.source)]
    summary = markdown_table(
        ("source", "runs", "error of seconds, median", "inside 80 %", "with memory", "error of memory, median"),
        [_summed(source, of) for source, of in by_source] + [_summed("all, each source once", runs, by_source)],
        words=("source",),
    )
    columns = ("run", "measured", "predicted", "80 %", "predicted / measured", "inside", "memory", "of that predicted")
    figures = markdown_table(columns, [_figures(run) for run in runs], words=("run",))
    origins = "\n".join(f"* {source}: {', '.join(f'`{where}`' for where in _once(of))}" for source, of in by_source)
    return "\n\n".join((LEAD, summary, BESIDE, figures, "## Where they are published", origins)) + "\n"


def _summed(source: str, runs: Sequence[UnseenRun], parts: Sequence[tuple[str, Sequence[UnseenRun]]] = ()) -> list[str]:
    """Return the row of some runs; medians over `parts`, where there are any, are means of theirs."""
    groups = [of for _, of in parts] or [runs]
    timed = [[run for run in of if run.ratio is not None] for of in groups]
    seconds = [median(abs(ratio - 1.0) for run in of if (ratio := run.ratio) is not None) for of in timed if of]
    memory = [median(errors) for of in groups if (errors := list(_memory_errors(of)))]
    inside = [sum(run.inside for run in of) / len(of) for of in timed if of]
    known = sum(run.memory is not None for run in runs)
    means = [f"{sum(values) / len(values):.1%}" if values else "–" for values in (seconds, inside, memory)]
    return [source, str(len(runs)), means[0], means[1], str(known), means[2]]


def _memory_errors(runs: Iterable[UnseenRun]) -> Iterator[float]:
    return (abs(run.memory_ratio - 1.0) for run in runs if run.memory_ratio is not None)


def _figures(run: UnseenRun) -> list[str]:
    range_ = f"{format_seconds(run.low)} to {format_seconds(run.high)}"
    memory = "–" if run.memory is None else f"{run.memory / GIBIBYTE:.1f} GiB"
    of_memory = "–" if run.memory_ratio is None else f"{run.memory_ratio:.2f}"
    name = f"{run.name} ({run.note})" if run.note else run.name
    now = format_seconds(run.predicted_seconds)
    if run.seconds is None:
        return [name, "–", now, range_, "–", "–", memory, of_memory]
    inside = "yes" if run.inside else "no"
    return [name, format_seconds(run.seconds), now, range_, f"{run.ratio:.2f}", inside, memory, of_memory]


def _once(runs: Iterable[UnseenRun]) -> Iterator[str]:
    return iter(dict.fromkeys(run.where for run in runs))


def unseen(
    page: Annotated[Path, option("--page", metavar="FILE", help="Where the page is written.")] = PAGE,
) -> None:
    """Predict the runs that no constant has seen, and write their page; a minute."""
    text = unseen_page([predicted(row) for row in unseen_runs()])
    write_atomically(page, text)
    print(text)
