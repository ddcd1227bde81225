"""What families compute, under plans that cut it: training equals that of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
from tests.nightly import nightly
from tests.runtime.equal import SGD, require_equal
from tests.runtime.families import first_of_each
from tests.runtime.reference import reference_run
from tests.runtime.samples import plan_of, replica, stage
from tests.runtime.workers import Case, run_cases

from shardwright import Model, check
from shardwright.plans.document import dumps, from_document
from shardwright.plans.plan import Plan, Recompute
from shardwright.runtime.layout.limits import unrunnable
from shardwright.spec.read.huggingface import model_of_config

PROCESSES, STEPS, SEED = 4, 3, 7
SELECTIVE = Recompute(granularity="selective")
BLOCK = Recompute(granularity="full", method="block", layers=1)
CONFIGS = first_of_each()


@cache
def model_of(family: str) -> Model:
    return model_of_config(CONFIGS[family], family)


def in_stages(model: Model) -> Plan:
    """Sequence parallelism in two stages."""
    stages = (stage((0, 1), tp=2, recompute=BLOCK), stage((1, 3), tp=2, recompute=SELECTIVE))
    return plan_of(model, replica(*stages, micro_batches=2), sequence_parallel=True)


def in_four(model: Model) -> Plan:
    """Four ranks of one stage, more than there are key-value heads."""
    return plan_of(model, replica(stage((0, 3), tp=4), micro_batches=2))


def unequal(model: Model) -> Plan:
    """A replica of two ranks side by side beside one of two stages."""
    pipeline = replica(stage((0, 2)), stage((2, 3), recompute=SELECTIVE), micro_batches=2)
    return plan_of(model, replica(stage((0, 3), tp=2), micro_batches=1), pipeline, sharding="zero1")


def in_parts(model: Model) -> Plan:
    """Two parts of a sequence, each on two ranks, whole weights nowhere."""
    parts = replica(stage((0, 3), cp=2, tp=2, recompute=SELECTIVE), micro_batches=2)
    return plan_of(model, parts, sharding="zero3", sequence_parallel=True)


def whole_nowhere(model: Model) -> Plan:
    """Two copies of two ranks, whole weights nowhere."""
    return plan_of(model, replica(stage((0, 3), tp=2), count=2, micro_batches=2), sharding="zero3")


def weights_apart(model: Model) -> Plan:
    """Two stages that put the gradients of weights off."""
    plan = plan_of(model, replica(stage((0, 1)), stage((1, 3)), count=2, micro_batches=4), sharding="zero1")
    return replace(plan, schedule=replace(plan.schedule, kind="zero-bubble"))


def experts_apart(model: Model) -> Plan:
    """Whole experts on all four ranks of two copies."""
    copies = replica(stage((0, 3), tp=2, ep=4, etp=1), count=2, micro_batches=1)
    return plan_of(model, copies, sequence_parallel=True, sharding="zero1")


def experts_cut(model: Model) -> Plan:
    """Experts on two copies, each cut in two."""
    return plan_of(model, replica(stage((0, 3), tp=2, ep=2), count=2, micro_batches=2), sharding="zero2")


MIXED = (in_stages, unequal, whole_nowhere, weights_apart)
DENSE, EXPERTS = (in_stages, in_four, unequal, in_parts), (experts_apart, experts_cut, in_stages, unequal)
FAMILIES = {
    "bailing_hybrid": (*MIXED, in_four, experts_apart),  # bounded decays of channels, a gate of each latent head
    "bamba, short chunks": MIXED,  # Mamba-2, heads in groups
    "bert": (in_stages, in_four, unequal),  # attention to all tokens, norms of sums, a transform before the head
    "bloom": DENSE,  # ALiBi, a norm of the embedding
    "cohere": DENSE,  # a parallel block, one norm without a bias
    "cohere, a norm for each head": DENSE,
    "deepseek_v2, groups": EXPERTS,
    "deepseek_v3": EXPERTS,  # latent attention, a sigmoid router that balances, shared experts
    "exaone4": DENSE,  # norms after the blocks, layers without rotation
    "falcon": (in_stages, in_four, unequal),  # one key-value head
    "gemma2, low caps": DENSE,  # four norms, capped scores and logits, windows
    "gpt_neox": DENSE,  # two norms of a parallel block, partial rotation
    "gpt_oss": (experts_apart, experts_cut, in_stages, unequal),  # sinks, biases of experts and of the router
    "granitemoehybrid": (*MIXED, experts_apart, experts_cut),  # Mamba-2, experts after every mixer
    "hunyuan_v1_dense": DENSE,  # norms after the rotation
    "falcon_h1, scaled": MIXED,  # attention and Mamba-2 side by side, every product times a number
    "falcon_mamba": (*MIXED, in_four),  # Mamba-1 alone, norms of what it selects by
    "jamba": (*MIXED, experts_apart),  # the same with weights, experts, and attention
    "kimi_linear": (
        *MIXED,
        in_four,
        experts_apart,
        experts_cut,
    ),  # decays of channels, latent attention without rotation
    "lfm2": (*MIXED, in_four),  # short convolutions
    "minicpm3": DENSE,  # scaled latent attention
    "minimax, scaled": (*MIXED, in_four),  # lightning attention, norms of the residual itself
    "nemotron": DENSE,  # norms about one
    "nemotron_h": MIXED,  # blocks of one half
    "nemotron_h, experts": EXPERTS,  # on a projection of the tokens
    "olmo, clipped": DENSE,  # norms without weights
    "olmo2": DENSE,  # norms over the heads of all ranks
    "olmo_hybrid": MIXED,  # gated delta nets with negative eigenvalues, norms before them and after attention
    "opt": DENSE,
    "qwen3_5_text": MIXED,  # gated delta nets, a gate on attention
    "qwen3_next": (*MIXED, experts_apart),
    "phi": DENSE,  # a bias of the output projection
    "zamba": (whole_nowhere,),  # Mamba-1 of two heads, a block that layers share
    "zamba2, two blocks": (whole_nowhere,),  # blocks in turns, with what is of low rank
}
PLANS = {f"{family}: {place.__name__}": (family, place) for family, places in FAMILIES.items() for place in places}
SAMPLE = (
    "bert: in_stages", "bloom: in_parts", "cohere, a norm for each head: in_four", "deepseek_v3: experts_apart", "falcon: in_four",
    "gemma2, low caps: in_stages", "gpt_neox: unequal", "gpt_oss: experts_cut", "minicpm3: in_parts",
    "olmo2: in_four", "phi: in_stages", "granitemoehybrid: experts_apart", "qwen3_next: whole_nowhere",
    "bamba, short chunks: in_stages", "lfm2: unequal", "nemotron_h: unequal", "nemotron_h, experts: experts_apart",
    "olmo_hybrid: in_stages", "falcon_mamba: in_four", "jamba: in_stages", "minimax, scaled: unequal",
    "falcon_h1, scaled: in_stages", "bailing_hybrid: in_stages", "kimi_linear: in_stages", "kimi_linear: experts_apart",
    "zamba: whole_nowhere", "zamba2, two blocks: whole_nowhere",
)  # fmt: skip


def plan_named(name: str) -> Plan:
    family, place = PLANS[name]
    return place(model_of(family))


@pytest.mark.parametrize("names", [SAMPLE, *nightly(([name for name in PLANS if name not in SAMPLE],))])
def test_training_under_plans_equals_that_of_one_process(names: tuple[str, ...]) -> None:
    plans = {name: plan_named(name) for name in names}
    for name, plan in plans.items():
        assert not check(plan) and not unrunnable(plan), name
    outcomes = run_cases([Case(name, plan, SGD, steps=STEPS, seed=SEED) for name, plan in plans.items()], PROCESSES)
    for name, plan in plans.items():
        try:
            require_equal(outcomes[name], reference_run(plan, SGD, steps=STEPS, seed=SEED))
        except AssertionError as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("family", CONFIGS)
def test_a_plan_file_keeps_what_a_family_computes(family: str) -> None:
    model = model_of(family)
    plan = plan_of(model, replica(stage((0, len(model.layers))), micro_batches=1))
    assert from_document(json.loads(dumps(plan))) == plan


def test_what_needs_all_positions_is_refused_in_parts() -> None:
    for family, words in {"gpt_oss": "sinks", "bert": "later tokens", "lfm2": "layers without attention"}.items():
        plan = in_parts(model_of(family))
        assert any(words in problem.message for problem in unrunnable(plan))
