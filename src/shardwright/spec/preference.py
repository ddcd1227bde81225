"""`Preference`: training on what people prefer, by a loss over log-probabilities of whole answers.

What each loss computes is that of TRL 1.16 (trl/trainer/{dpo,kto}_trainer.py, trl/experimental/{orpo,cpo}): a sample of
DPO, ORPO and CPO (SimPO is a loss of CPO's) is a pair, the answer that was chosen and the one that was rejected, which
are one batch of twice as many sequences. DPO and KTO hold log-probabilities against those of a reference, the model as
it was: a second copy of the weights, or beside adapters the same ones without them; or they are computed once, before
training. KTO takes single answers, and runs forward besides with answers to other prompts. A model of rewards learns to
score the answer that was chosen above the other one (trl/trainer/reward_trainer.py).

LLaMA-Factory (0.9.5, train/{dpo,kto}/trainer.py, train/trainer_utils.py: get_batch_logps) and torchtune (0.6.1,
recipes/{full,lora}_dpo_*.py, rlhf/sequence_processing.py) have code of their own for some of these losses: all logits
in fp32, and a reference that FSDP shards layer by layer, in the type of the passes.
"""

from __future__ import annotations

from typing import Literal, cast

from shardwright.errors import bad, suggestion
from shardwright.records import record
from shardwright.spec.model import Model

PreferenceLoss = Literal["dpo", "kto", "orpo", "cpo", "reward"]
Code = Literal["trl", "llamafactory", "torchtune"]
PRECOMPUTED = "precomputed"


@record
class Passes:
    """What a loss runs for a sample, in sequences: `trained` with gradients, and without these the `policy`, which is
    trained, and the `reference`; `tiled`: no more than tiles of the logits are there (`Options`); `scores`: there are
    none, as the head gives one score of a token (`Model.giving_scores`)."""

    trained: int
    policy: int
    reference: int
    tiled: bool
    scores: bool = False


LOSSES: dict[PreferenceLoss, Passes] = {
    "dpo": Passes(trained=2, policy=0, reference=2, tiled=True),
    "kto": Passes(trained=1, policy=1, reference=2, tiled=True),
    "orpo": Passes(trained=2, policy=0, reference=0, tiled=False),
    "cpo": Passes(trained=2, policy=0, reference=0, tiled=False),
    "reward": Passes(trained=2, policy=0, reference=0, tiled=False, scores=True),
}
OTHER_NAMES = {"ipo": "dpo", "simpo": "cpo", "rm": "reward"}
# The losses that other trainers than TRL have code of their own for.
OTHER_CODE: dict[Code, tuple[PreferenceLoss, ...]] = {
    "llamafactory": ("dpo", "kto", "orpo", "cpo"),
    "torchtune": ("dpo",),
}
# Of TRL, verl, OpenRLHF and NeMo-RL: the model generates what it is trained on.
REINFORCEMENT = frozenset(
    [
        *("grpo", "ppo", "rloo", "reinforce", "reinforce++", "remax", "gspo", "dapo", "drgrpo", "dr_grpo", "cispo"),
        *("prime", "raft", "online_dpo", "xpo", "nash_md"),
    ]
)


@record
class Preference:
    """A loss over preferences: `loss` is a key of `LOSSES`; with `precomputed`, the reference has run before. `by` says
    whose code computes it."""

    loss: PreferenceLoss
    precomputed: bool = False
    by: Code = "trl"

    @property
    def name(self) -> str:
        """As `parse_preference` reads it."""
        how = PRECOMPUTED if self.precomputed else "" if self.by == "trl" else self.by
        return f"{self.loss}:{how}" if how else self.loss

    @property
    def passes(self) -> Passes:
        return LOSSES[self.loss]

    @property
    def tiled(self) -> bool:
        """Whether no more than tiles of the logits are there."""
        return self.passes.tiled and self.by == "trl"

    @property
    def reference(self) -> bool:
        """Whether a reference runs beside the model."""
        return self.passes.reference > 0 and not self.precomputed

    @property
    def least_samples(self) -> int:
        """The samples that a GPU takes at least at a time: KTO's answers to other prompts are those of the same batch
        (trl/trainer/kto_trainer.py 1.16 refuses one)."""
        return 2 if self.passes.policy and self.by == "trl" else 1

    @property
    def policy_passes(self) -> float:
        """Forward passes without gradients of the model that is trained, for one with gradients."""
        return self.passes.policy / self.passes.trained

    @property
    def reference_passes(self) -> float:
        """The same of the reference."""
        return self.passes.reference / self.passes.trained if self.reference else 0.0


def parse_preference(text: str) -> Preference:
    """Return the loss over preferences that `dpo`, `kto`, `orpo`, `cpo`, `reward`, `dpo:precomputed` or, by another
    trainer's code than TRL's, `dpo:llamafactory` stands for; `ipo` is a loss of DPO's, `simpo` of CPO's. Raises
    SpecError for anything else."""
    name, mark, how = text.strip().casefold().partition(":")
    loss = cast("PreferenceLoss", OTHER_NAMES.get(name, name))
    if name.replace("-", "_") in REINFORCEMENT:
        message = f"{text!r} is reinforcement learning, which trains and generates by turns: out of scope"
        raise bad("preference", message, f"docs/scope.md; losses over preferences are {', '.join(LOSSES)}")
    if loss not in LOSSES:
        raise bad("preference", f"unknown loss {text!r}", suggestion(name, [*LOSSES, *OTHER_NAMES]))
    if how in OTHER_CODE:
        if loss not in OTHER_CODE[how]:
            raise bad("preference", f"{how} has no code for {loss}", f"it has {', '.join(OTHER_CODE[how])}")
        return Preference(loss=loss, by=how)
    if mark and how != PRECOMPUTED:
        ways = (f"{loss}:{way}" for way in (PRECOMPUTED, *OTHER_CODE))
        raise bad("preference", f"{text!r} says {how!r} of how it is run", f"write {loss}, or {', '.join(ways)}")
    if mark and not LOSSES[loss].reference:
        raise bad("preference", f"{loss} has no reference to compute before", f"write {loss}")
    return Preference(loss=loss, precomputed=bool(mark))


def as_trained(model: Model, preference: Preference | None) -> Model:
    """Return a model with the head that a loss over preferences is taken of."""
    scored = preference is not None and preference.passes.scores
    return model.giving_scores() if scored and model.scores is None else model
