"""`Job`: what is to be trained on, and what the user wants of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast, get_args

from shardwright.records import record
from shardwright.spec.adapter import BLOCK_BYTES, FROZEN_BYTES, WHOLE_BYTES, Adapter
from shardwright.spec.catalog.frameworks import framework_has, framework_rows
from shardwright.spec.cluster import Gpu
from shardwright.spec.options import DEFAULTS, Dispatcher, Loss, Options
from shardwright.spec.preference import Preference

Precision = Literal["bf16", "fp16", "fp8", "fp32"]
Fp8Recipe = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
FP8_RECIPES: tuple[Fp8Recipe, ...] = get_args(Fp8Recipe)
Optimizer = Literal[
    "adam", "foreach_adam", "adam8bit", "paged_adam", "paged_adam8bit", "galore", "apollo", "lion", "adafactor", "muon",
    "sgd", "plain_sgd", "none",
]  # fmt: skip
Part = Literal["vision", "audio", "projector", "language", "encoder"]
PARTS: tuple[Part, ...] = get_args(Part)
PROJECTED: tuple[Optimizer, ...] = ("galore", "apollo")
USUAL_RANK = 128  # transformers/trainer_optimizer.py 5.23
Framework = str  # a row of `catalog/data/frameworks.csv`
Objective = Literal["time", "cost"]
# Compute capabilities that DeepEP and HybridEP are built for, from one on and below another (README of DeepEP), and the
# one from which on HybridEP sends tokens, which takes padded ones as DeepEP does not.
FLEX = (8.0, 11.0)
HYBRID = 10.0


@record
class Job:
    """One training run. Sizes are in samples and tokens; `tokens` is None where only the step time is wanted.

    `framework` is the software that runs it; "megatron-2021" stands for Megatron of the time before FlashAttention,
    "fsdp" for FSDP without compilation, "eager" for plain PyTorch. Optimizer "foreach_adam" is PyTorch's Adam where it
    is not fused: several kernels go over all weights, one after another; "adam8bit" keeps Adam's moments in 8 bits,
    the paged ones keep them in memory that is paged to the host; "galore" and "apollo" keep those of gradients of
    matrices of layers that are projected to `optimizer_rank` (None: 128) dimensions; "muon" orthogonalises the steps of
    matrices of layers (Adam takes the rest); "plain_sgd" has no momentum, as PyTorch's unless it is told otherwise;
    with "none" an iteration is a forward and a backward pass alone.
    `adapter`: the weights are frozen, and small matrices (LoRA) are trained beside them.
    `fp8_storage`: weights and the inputs of non-linearities are kept in fp8 alone and gradients in bf16, as
    the peaks of NeMo's recipes imply (in Megatron-LM: fp8-param-gather, activation-func-fp8-input-store, no fp32
    reduction). `options` are what the framework leaves to choose beside. `fused_loss`: the output projection and the
    loss are one kernel that never holds the logits.
    `preference`: the loss is over answers that people prefer, and a sample may be a pair of sequences of `seq_len`.

    `document_tokens`: attention stays within documents of which several are in a sample; it is the length of the
    document of a token on average, of which attention's work is a multiple: Σ L² / Σ L.

    Of a model with a tower: a sequence has `images_per_sequence` images of `image_size` pixels (height, width), and
    `sounds_per_sequence` of `sound_seconds`, whose tokens are among its `seq_len` (`spec.images`); the parts in
    `freeze` keep their weights, and gradients go through them to what is trained before. Of an encoder-decoder
    `seq_len` counts the tokens of the decoder; those of the encoder are `encoder_seq_len`, as many where that is None.

    `budget_dollars` and `deadline_hours` bound the whole run and need `tokens`.
    """

    global_batch: int
    seq_len: int
    tokens: float | None = None
    precision: Precision = "bf16"
    fp8_recipe: Fp8Recipe | None = None
    optimizer: Optimizer = "adam"
    optimizer_rank: int | None = None
    objective: Objective = "time"
    framework: Framework = "megatron"
    fp8_storage: bool = False
    fused_loss: bool = False
    document_tokens: float | None = None
    budget_dollars: float | None = None
    deadline_hours: float | None = None
    options: Options = DEFAULTS
    adapter: Adapter | None = None
    preference: Preference | None = None
    images_per_sequence: int | None = None
    image_size: tuple[int, int] | None = None
    sounds_per_sequence: int | None = None
    sound_seconds: float | None = None
    freeze: tuple[Part, ...] | None = None
    encoder_seq_len: int | None = None

    @property
    def adapters(self) -> bool:
        """Whether adapters alone are trained."""
        return self.adapter is not None

    @property
    def attention_adapters(self) -> bool:
        """Whether they are beside weights of attention alone."""
        return self.adapter is not None and self.adapter.on_attention_alone

    @property
    def nf4(self) -> bool:
        """Whether frozen weights of layers are kept in four bits."""
        return self.adapter is not None and self.adapter.frozen == "nf4"

    @property
    def int8(self) -> bool:
        """Whether frozen weights of layers are kept in eight bits."""
        return self.adapter is not None and self.adapter.frozen == "int8"

    @property
    def experts_unquantised(self) -> bool:
        """Whether experts stay in 16 bits beside quantised matrices: those of transformers 5 are one parameter, and
        bitsandbytes takes linear layers alone (github.com/bitsandbytes-foundation/bitsandbytes/issues/1849); `train`
        multiplies by all experts at once. Those of a loop, before release 5, are linear layers."""
        quantised = self.adapter is not None and self.adapter.quantised
        return quantised and self.options.expert_products != "loop"

    @property
    def nf4_blocks(self) -> bool:
        """Whether blocks of those in four bits have scales in fp32 of their own, with which they are cut (`train`)."""
        return self.nf4 and framework_has(self.framework, "block_scales")

    @property
    def kept_bytes(self) -> tuple[float, float]:
        """Bytes of a frozen weight of a layer beside adapters, and those of them that stand whole on every rank."""
        if self.nf4_blocks:
            return BLOCK_BYTES, 0.0
        kept = self.adapter.frozen if self.adapter is not None else "16-bit"
        return FROZEN_BYTES[kept], WHOLE_BYTES[kept]

    @property
    def projection_rank(self) -> int | None:
        """To how many dimensions gradients are projected for the optimizer, None where they are not."""
        return (self.optimizer_rank or USUAL_RANK) if self.optimizer in PROJECTED else None

    @property
    def optimizer_words(self) -> str:
        """The optimizer as `make_job` takes it."""
        return self.optimizer if self.optimizer_rank is None else f"{self.optimizer}:{self.optimizer_rank}"

    def trains(self, part: Part) -> bool:
        """Whether the weights of a part of a model are trained: those that adapters are beside are not, nor is a tower
        before them."""
        return self.adapter is None and part not in (self.freeze or ())

    @property
    def attended_tokens(self) -> float:
        """The length of the sequence that attention goes over: of a sample, or of a token's document."""
        return float(self.seq_len if self.document_tokens is None else min(self.document_tokens, self.seq_len))

    @property
    def sequences(self) -> int:
        """The sequences of a sample that are trained on: one, or both of a pair."""
        return 1 if self.preference is None else self.preference.passes.trained

    @property
    def sample_tokens(self) -> int:
        return self.seq_len * self.sequences

    @property
    def tokens_per_iteration(self) -> int:
        return self.global_batch * self.sample_tokens

    @property
    def passes_without_gradients(self) -> float:
        """Forward passes without gradients, of the model and of a reference, for one with gradients."""
        return 0.0 if self.preference is None else self.preference.policy_passes + self.preference.reference_passes

    @property
    def holds_reference(self) -> bool:
        """Whether a second copy of the weights is there, which is not trained: beside adapters the frozen weights are
        the reference themselves."""
        return self.preference is not None and self.preference.reference and self.adapter is None

    @property
    def loss(self) -> Loss | None:
        """How the loss is computed: as the job says, else as that over preferences is, else the framework's own way."""
        tiled = self.preference is not None and self.preference.tiled
        return self.options.loss or ("tiled" if tiled else None)

    @property
    def fp32_gradients(self) -> bool:
        """Whether gradients are kept and reduced in fp32 because the job says so."""
        return self.precision == "fp32" or self.options.grad_reduce == "fp32"

    @property
    def bf16_gradients(self) -> bool:
        """Whether gradients are kept and reduced in bf16 (`Options`)."""
        return self.options.bf16_gradients

    @property
    def fp8_weights(self) -> bool:
        """Whether weights are kept in fp8 alone, without ones in 16 bits."""
        return self.fp8_storage or self.options.param_gather == "fp8"

    @property
    def masters(self) -> bool:
        """Whether 16-bit weights have fp32 masters that are updated in their place."""
        return self.options.master_weights != "none"

    @property
    def iterations(self) -> float | None:
        """Optimizer steps of the whole run (a fraction where the tokens do not divide)."""
        return None if self.tokens is None else self.tokens / self.tokens_per_iteration


def dispatcher_of(job: Job, gpus: Iterable[Gpu]) -> Dispatcher:
    """Return the dispatcher of a job on `gpus`: the one that it says, else its framework's own. In place of a `flex`
    that nobody asked for, GPUs that it does not run on get the all-to-all."""
    if job.options.dispatcher is not None:
        return job.options.dispatcher
    usual = cast("Dispatcher", framework_rows()[job.framework]["dispatcher"])
    return usual if usual != "flex" or flex_runs(gpus, job) else "alltoall"


def flex_runs(gpus: Iterable[Gpu], job: Job) -> bool:
    """Return whether DeepEP or HybridEP sends the tokens of a job on all of `gpus`: padded to a capacity the latter
    alone (Megatron-LM core_v0.19.2, transformer/transformer_config.py 1600)."""
    least = HYBRID if job.options.padded else FLEX[0]
    return all(gpu.vendor == "nvidia" and least <= gpu.capability < FLEX[1] for gpu in gpus)
