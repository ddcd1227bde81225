"""Which of Megatron-LM's dispatchers sends tokens to their experts as a plan is priced."""

from __future__ import annotations

from shardwright.exporters.megatron.limits import first_stage, least_capability, pools_of
from shardwright.exporters.megatron.positions import Arguments
from shardwright.plans.plan import Plan
from shardwright.spec.job import dispatcher_of
from shardwright.spec.options import Dispatcher

BLACKWELL = 10.0  # its compute capability


def dispatcher_of_plan(plan: Plan) -> Dispatcher:
    """Return the dispatcher that a plan is priced with. Where experts stay inside an NVLink domain, a `flex` that the
    plan does not ask for takes as long as the all-to-all, which runs everywhere."""
    stage, pools = first_stage(plan), pools_of(plan)
    apart = stage.expert_parallel * stage.expert_tensor_parallel > min(pool.domain_gpus for pool in pools)
    if plan.job.options.dispatcher or apart:
        return dispatcher_of(plan.job, (pool.gpu for pool in pools))
    return "alltoall"


def flex_backend(plan: Plan) -> str:
    """Return what sends tokens for `flex`: DeepEP, or HybridEP, which also knows the NVL72s of Blackwell
    (Megatron-Bridge 0.6.2: training/flex_dispatcher_backend.py 102-119)."""
    return "deepep" if least_capability(plan) < BLACKWELL else "hybridep"


def dispatcher_arguments(plan: Plan) -> Arguments:
    """Return the dispatcher as arguments. DeepEP and HybridEP take probabilities in fp32 alone
    (token_dispatcher.py 1127 and 1303 of core_v0.19.2)."""
    dispatcher = dispatcher_of_plan(plan)
    arguments: Arguments = (("--moe-token-dispatcher-type", dispatcher),)
    if dispatcher != "flex":
        return arguments
    biased = any(kind.moe and kind.moe.router_bias for kind in plan.model.kinds)  # whose arguments say so already
    exact: Arguments = () if biased else (("--moe-router-dtype", "fp32"),)
    return (*arguments, ("--moe-flex-dispatcher-backend", flex_backend(plan)), *exact)
