"""What a training run is told beside the plan and the data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardwright.records import record
from shardwright.runtime.state.recipe import Recipe
from shardwright.spec.job import Precision

if TYPE_CHECKING:
    from shardwright.runtime.storage.data import Location
    from shardwright.runtime.storage.mixture import Source

Device = Literal["cpu", "cuda"]
CHANGES = ("data", "seed", "global_batch", "seq_len", "precision", "mask_documents")


@record
class Settings:
    """`steps` counts from the beginning of training, not from a resumption. `checkpoint_every` 0 writes one at the end
    alone, `keep` 0 keeps all. `resume` is a folder of checkpoints, of whose course `accept_change` names what may be
    another (of `CHANGES`), `weights` one of Hugging Face files, `adapters` one of adapters as PEFT keeps them. With
    `mask_documents` attention stays within documents. A rank that is silent for `patience_seconds`, or computes for
    twice as long, counts as lost. `profile_steps` are measured layer by layer; the step after the first is traced,
    where `trace` names a file. Every `evaluate_every` steps (0: at the end) the loss is taken on the first
    `evaluate_batches` global batches of `held_out`. What is measured also goes to TensorBoard, and to the project
    `wandb` of Weights & Biases. `compile` says whether layers are compiled; None: on GPUs."""

    data: tuple[Source, ...]
    out: Path
    steps: int
    recipe: Recipe
    seed: int = 0
    mask_documents: bool = False
    checkpoint_every: int = 0
    keep: int = 2
    resume: Path | None = None
    accept_change: tuple[str, ...] = ()
    weights: Path | None = None
    adapters: Path | None = None
    save_weights: Path | None = None
    config: Path | None = None
    device: Device = "cpu"
    precision: Precision = "fp32"
    patience_seconds: float = 120.0
    profile: Path | None = None
    profile_steps: int = 3
    trace: Path | None = None
    held_out: Location | None = None
    evaluate_every: int = 0
    evaluate_batches: int = 8
    tensorboard: bool = False
    wandb: str = ""
    compile: bool | None = None

    @property
    def measured_steps(self) -> int:
        """How many steps after the first are measured unit by unit, or traced."""
        return max(self.profile_steps if self.profile is not None else 0, int(self.trace is not None))

    @property
    def compiles(self) -> bool:
        """Whether layers are compiled. Those that are measured unit by unit are not."""
        wanted = self.device == "cuda" if self.compile is None else self.compile
        return wanted and self.profile is None
