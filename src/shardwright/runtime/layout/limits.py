"""What of a plan the runtime cannot run (yet), said before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardwright.errors import Problem
from shardwright.plans.plan import Plan
from shardwright.plans.trainable import untrainable_stages
from shardwright.plans.trainer_options import OWN_FP8_RECIPE, OWN_FP8_RECIPES
from shardwright.spec.model import Attention
from shardwright.spec.options import said

ACTIVATIONS = ("silu", "swish", "swiglu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2")
OWN_OPTIONS = {"grad_reduce": "fp32", "dispatcher": "alltoall"}  # as it runs every plan
# Families whose forward pass has something that no field of `Model` tells.
FAMILIES_WITH_MORE = (
    "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "chatglm", "granite", "bert", "opt", "nemotron",
    "deepseek_v2", "deepseek_v3", "phi", "phi3", "gpt_neox", "falcon", "bloom", "starcoder2",
)  # fmt: skip


def unrunnable(plan: Plan) -> tuple[Problem, ...]:
    """Return why a legal plan cannot be run, nothing if it can. Paths are those of the plan file."""
    rules: tuple[Callable[[Plan], Iterator[Problem]], ...] = (
        _model,
        _attention,
        _optimizer,
        _precision,
        _options,
        untrainable_stages,
    )
    return tuple(problem for rule in rules for problem in rule(plan))


def _model(plan: Plan) -> Iterator[Problem]:
    model = plan.model
    mixtures = [kind.moe for kind in model.kinds if kind.moe]
    lacking = {
        f"models of family {model.family}": model.family in FAMILIES_WITH_MORE,
        f"what is particular to the model ({model.particular})": model.particular is not None,
        "norms whose weights are kept less one": bool(model.norm_about_one),
        "interleaved rotary positions": bool(model.rotary_interleaved),
        "norms with other weights than usual": model.norm_vectors is not None,
        "weights beside matrices and norms": any(kind.vector_parameters for kind in model.kinds),
        f"{model.position} positions": model.position not in ("rope", "learned", "none"),
        f"the activation {model.activation}": model.activation not in ACTIVATIONS,
        "attention and feed-forward side by side": model.parallel_block,
        "an embedding narrower than the model": model.embedding_width is not None,
        "multi-token prediction": model.mtp_layers > 0,
        "a bias on the output projection": model.head_bias,
        "layers with other than two norms": any(kind.norms != 2 for kind in model.kinds),
        "a router with a balancing bias": any(moe.router_bias for moe in mixtures),
        "a router that picks groups of experts": any(moe.router_groups for moe in mixtures),
        "experts whose weights are scaled": any(moe.router_scaling not in (None, 1.0) for moe in mixtures),
    }
    for what, there in lacking.items():
        if there:
            yield Problem("model", f"{what} cannot be run", "Llama, Mistral, Mixtral, Qwen 2 and 3 and GPT-2 can")


def _attention(plan: Plan) -> Iterator[Problem]:
    attentions = [kind.attention for kind in plan.model.kinds]
    lacking = {
        "multi-head latent attention": any(attention.latent for attention in attentions),
        "attention to later tokens": not all(attention.causal for attention in attentions),
        "layers that differ in heads": len({_heads(attention) for attention in attentions}) > 1,
    }
    for what, there in lacking.items():
        if there:
            yield Problem("model.layers", f"{what} cannot be run", "take another model")


def _heads(attention: Attention) -> tuple[int, int, int]:
    return attention.heads, attention.kv_heads, attention.head_dim


def _optimizer(plan: Plan) -> Iterator[Problem]:
    if plan.job.adapters:
        yield Problem("job.adapters", "training of adapters cannot be run", "leave it out")


def _precision(plan: Plan) -> Iterator[Problem]:
    job = plan.job
    if job.fp8_storage:
        yield Problem("job.fp8_storage", "cannot be run: weights are kept in 16 bits as well", "leave it out")
    if job.precision == "fp8" and job.fp8_recipe not in OWN_FP8_RECIPES:
        yield Problem("job.fp8_recipe", f"{job.fp8_recipe} cannot be run", f"use {OWN_FP8_RECIPE}, or leave it out")


def _options(plan: Plan) -> Iterator[Problem]:
    for name, word in said(plan.job.options).items():
        if OWN_OPTIONS.get(name) != word:
            yield Problem(f"job.options.{name}", f"{word} cannot be run", "leave the option out of the plan")
