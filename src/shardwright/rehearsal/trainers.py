"""The trainers that can be rehearsed: what of a plan each refuses, and what its process is asked, models as
configurations of transformers 5 among it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from shardwright.errors import Problem, bad, reject
from shardwright.exporters.accelerate import unsupported as accelerate_limits
from shardwright.exporters.hugging_face import adapter_config, quantisation_config
from shardwright.exporters.megatron.limits import unsupported as megatron_limits
from shardwright.exporters.torchtitan.config import export_config
from shardwright.exporters.torchtitan.config import unsupported as torchtitan_limits
from shardwright.plans.check import check
from shardwright.plans.document import to_document
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import holding
from shardwright.runtime.layout.groups import Place
from shardwright.runtime.layout.limits import unrunnable
from shardwright.spec.forward_pass import PLAIN, ForwardPass
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface import model_of_config

OF_FRAMEWORK = {"eager": "fsdp"}  # the trainer that a plan of a framework is rehearsed in, where it has another name
NOT_YET = ("deepspeed", "nanotron", "jax", "trl")
SIZES = ("global_batch", "seq_len", "precision")
OF_NO_STEP = ("tokens", "objective", "framework", "budget_dollars", "deadline_hours")
SCALES = ("embedding_scale", "residual_scale", "logit_scale", "score_scale")  # of what is computed all the same
OPTIMIZERS = ("adam", "foreach_adam", "adam8bit")
HINT = "rehearse a dense model of the families llama, mistral, qwen2 or qwen3"


@record
class Trainer:
    """A trainer: what it is, what of a legal plan it cannot run (`unrun`), what of a plan that it runs cannot be
    rehearsed yet (`lacks`), and what it is asked of a plan beside the rank."""

    words: str
    unrun: Callable[[Plan], Iterable[Problem]]
    question: Callable[[Plan], dict[str, Any]]
    lacks: Callable[[Plan], Iterable[Problem]] = lambda _: ()

    def limits(self, plan: Plan) -> tuple[Problem, ...]:
        """Return why a legal plan is not rehearsed."""
        return tuple(self.unrun(plan)) or tuple(self.lacks(plan))


def trainer_of(plan: Plan, name: str | None) -> str:
    """Return the trainer of that name, or of the framework that a plan is priced for. Raises SpecError for one that is
    not rehearsed, or a plan that it cannot run."""
    chosen = name or OF_FRAMEWORK.get(plan.job.framework, plan.job.framework)
    known = ", ".join(TRAINERS)
    if chosen not in TRAINERS:
        what = "is not rehearsed yet" if chosen in NOT_YET else "is not known"
        raise bad(f"`trainer={chosen}`", what, f"one of {known}, for a plan that is made for it with `framework=`")
    reject(tuple(check(plan)) or TRAINERS[chosen].limits(plan))
    return chosen


def question_of(plan: Plan, trainer: str, place: Place) -> dict[str, Any]:
    """Return what a process is asked of one rank."""
    gpu = next(pool.gpu for pool in plan.cluster.pools if pool.gpu.name == place.gpu)
    number = gpu.capability if gpu.capability != float("inf") else 9.0
    return {
        "trainer": trainer,
        "rank": place.rank,
        "world_size": plan.gpus,
        "gpu": {
            "name": gpu.name, "memory_bytes": gpu.memory_bytes, "capability": [int(number), round(number % 1 * 10)],
        },
        "environment": {},
    } | TRAINERS[trainer].question(plan)  # fmt: skip


def _of_own(plan: Plan) -> dict[str, Any]:
    return {"plan": to_document(plan)}


def _of_fsdp(plan: Plan) -> dict[str, Any]:
    (replica,) = plan.replicas
    return {
        "config": configuration(plan.model),
        "adapter": None if plan.job.adapter is None else adapter_config(plan.model, plan.job.adapter),
        "quantisation": quantisation_config(plan),
        "preference": plan.job.preference and plan.job.preference.loss,
        "reference": plan.job.preference is not None and plan.job.preference.reference,
        "masters": plan.job.masters,
        "tiled": plan.job.loss == "tiled",
        "optimizer": plan.job.optimizer,
        "micro_batch": plan.micro_batch,
        "sequences": plan.job.sequences,
        "micro_batches": replica.micro_batches,
        "seq_len": plan.job.seq_len,
        "precision": plan.job.precision,
        "sharding": plan.optimizer.sharding,
        "offload": plan.optimizer.offload > 0.0,
        "whole_until_last": plan.job.options.gradient_sync == "last",
        "recompute": replica.stages[0].recompute.granularity == "full",
    }


def _fsdp_lacks(plan: Plan) -> Iterable[Problem]:
    if plan.replicas[0].stages[0].gpus > 1:
        message = "Hugging Face's tensor and context parallelism are not rehearsed yet"
        yield Problem("replicas[0].stages[0]", message, "plan with tp=1 and cp=1")
    yield from _unrehearsed(plan.job)


def _unrehearsed(job: Job) -> Iterator[Problem]:
    """Yield what of a job a rehearsal is not asked for (`_of_fsdp`): all that is not as in a plain job of its size."""
    plain = Job(global_batch=job.global_batch, seq_len=job.seq_len)
    left = ("gradient_sync", "master_weights", *(("loss",) if job.loss == "tiled" else ()))
    asked = (*SIZES, *OF_NO_STEP, "options", "adapter", "optimizer", "preference")
    parts = (("job", job, plain, asked), ("job.options", job.options, plain.options, left))
    for place, record_of, usual, left in parts:
        for field in fields(record_of):
            if field.name not in left and getattr(record_of, field.name) != getattr(usual, field.name):
                hint = "plan without, or rehearse the plan of another trainer"
                yield Problem(f"{place}.{field.name}", "is not rehearsed under FSDP2 yet", hint)
    others = holding(
        (job.optimizer not in OPTIMIZERS, ("optimizer", job.optimizer, " or ".join(OPTIMIZERS))),
        (job.precision == "fp8", ("precision", "fp8", "bf16")),
    )
    for name, word, able in others:
        yield Problem(f"job.{name}", f"{word} is not rehearsed under FSDP2 yet", f"plan with {name}={able}")
    if job.preference is not None and job.preference.by != "trl":
        message = f"is {job.preference.by}, whose code of {job.preference.loss} is not rehearsed yet"
        yield Problem("job.preference.by", message, f"plan with preference={job.preference.loss}")


def _of_megatron(plan: Plan) -> dict[str, Any]:
    from shardwright.exporters.megatron.export import to_megatron

    export = to_megatron(plan)
    (replica,) = plan.replicas
    return {
        "arguments": list(export.arguments),
        "environment": {name: value for name, value in export.environment if value is not None},
        "micro_batches": replica.micro_batches,
    }


def _megatron_lacks(plan: Plan) -> Iterable[Problem]:
    kinds = plan.model.kinds
    lacking = holding(
        (any(kind.window for kind in kinds), "windowed attention"),
        (plan.optimizer.sharding in ("zero2", "zero3"), "Megatron-FSDP"),
        (plan.optimizer.offload > 0.0, "an optimizer in host memory"),
        (plan.job.precision == "fp8", "fp8"),
        (plan.job.adapters, "adapters"),
        (plan.job.optimizer != "adam", f"the optimizer {plan.job.optimizer}"),
    )
    hint = "plan without, or rehearse it with `trainer=train`"
    return (Problem("plan", f"{what} cannot be rehearsed in Megatron-Core yet", hint) for what in lacking)


def _of_torchtitan(plan: Plan) -> dict[str, Any]:
    return {"file": export_config(plan).main, "compiled": True}


def _torchtitan_lacks(plan: Plan) -> Iterable[Problem]:
    kinds = plan.model.kinds
    lacking = holding(
        (any(kind.moe for kind in kinds), "mixtures of experts"),
        (any(kind.latent for kind in kinds), "multi-head latent attention"),
        (plan.optimizer.offload > 0.0, "an optimizer in host memory"),
        (plan.job.precision == "fp8", "fp8"),
    )
    return (Problem("plan", f"{what} cannot be rehearsed in torchtitan yet", "plan without") for what in lacking)


TRAINERS: Mapping[str, Trainer] = {
    "train": Trainer(words="shardwright train", unrun=unrunnable, question=_of_own),
    "fsdp": Trainer(
        words="transformers with PyTorch's FSDP2, as Accelerate sets it up",
        unrun=accelerate_limits,
        lacks=_fsdp_lacks,
        question=_of_fsdp,
    ),
    "megatron": Trainer(
        words="Megatron-Core", unrun=megatron_limits, lacks=_megatron_lacks, question=_of_megatron
    ),
    "torchtitan": Trainer(
        words="torchtitan (experimental)", unrun=torchtitan_limits, lacks=_torchtitan_lacks, question=_of_torchtitan
    ),
}  # fmt: skip


def configuration(model: Model) -> dict[str, Any]:
    """Return the fields of `AutoConfig.for_model`, `model_type` among them. Raises SpecError where a model is of no
    family that is known here."""
    reject(Problem("model", message, HINT) for message in _lacking(model))
    (kind,) = model.kinds
    attention = kind.attention
    assert kind.mlp is not None and attention is not None, "other blocks are refused"
    result: dict[str, Any] = {
        "model_type": "qwen3" if attention.qk_norm else "qwen2" if attention.qkv_bias else "llama",
        "hidden_size": model.hidden,
        "intermediate_size": kind.mlp.width,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": max(model.max_position, 1),
        "tie_word_embeddings": model.tied_embeddings,
        "hidden_act": "silu",
        "use_cache": False,
    }
    again = model_of_config(result, model.name)
    again = again if model.scores is None else again.giving_scores()
    if again.parameters != model.parameters:
        message = f"has {model.parameters:,} parameters, and a {again.family} of its sizes {again.parameters:,}"
        raise bad(model.name, message, HINT)
    return result


def _plain(forward: ForwardPass | None) -> bool:
    """Whether a forward pass computes what Llama's does, whatever its scales."""
    return forward is None or replace(PLAIN, **{name: getattr(forward, name) for name in SCALES}) == forward


def _lacking(model: Model) -> Iterator[str]:
    if len(model.kinds) > 1:
        yield "has layers of several kinds, which are not rehearsed under FSDP2 yet"
        return
    (kind,) = model.kinds
    attention = kind.attention
    if attention is None or kind.mixer is not None or attention.gate is not None:
        yield "has blocks with other mixers than attention, which are not rehearsed under FSDP2 yet"
        return
    checks = {
        "mixtures of experts": kind.moe is not None,
        "multi-head latent attention": attention.latent is not None,
        "windowed attention": attention.window is not None,
        "attention to later tokens": not attention.causal,
        "a bias on the output of attention": attention.out_bias,
        "norms of queries and keys beside biases": attention.qk_norm and attention.qkv_bias,
        "norms of values": attention.value_norm,
        "value heads of another size": attention.head_dim != attention.value_head_dim,
        "a feed-forward block without a gate": kind.mlp is not None and not kind.mlp.gated,
        "a bias in the feed-forward block": kind.mlp is not None and kind.mlp.bias,
        "gates that are cut off": kind.mlp is not None and bool(kind.mlp.cut),
        f"{model.position} positions": model.position != "rope" or model.rotary_fraction != 1.0,
        f"the norm {model.norm}": model.norm != "rmsnorm" or kind.norms != 2 or model.norm_vectors is not None,
        f"the activation {model.activation}": model.activation not in ("silu", "swish", "swiglu"),
        "multi-token prediction": model.mtp_layers > 0,
        "what is particular to it": model.particular is not None or model.parallel_block or model.dropout,
        "sparse attention": attention.sparse is not None,
        "an embedding of another width": model.embedding_width is not None or model.embedding_norm,
        **{tower.noun: True for tower in model.towers},
        "another forward pass than Llama's": not _plain(model.forward_pass),
    }
    for what, there in checks.items():
        if there:
            yield f"{what} cannot be rehearsed under FSDP2 yet"
