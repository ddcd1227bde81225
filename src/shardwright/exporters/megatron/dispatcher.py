"""Which of Megatron-LM's dispatchers sends tokens to their experts as a plan is priced."""

from __future__ import annotations

from shardwright.exporters.megatron.limits import first_stage, flex_runs, least_capability, pools_of
from shardwright.exporters.megatron.model import Arguments
from shardwright.plans.plan import Plan
from shardwright.spec.options import Dispatcher

BLACKWELL = 10.0  # its compute capability


def dispatcher_of(plan: Plan) -> Dispatcher:
    """Return the dispatcher that runs a plan: the one that it says, else the plainest that sends no token twice to a
    machine. Where experts stay inside an NVLink domain that is the all-to-all."""
    return plan.job.options.dispatcher or usual_dispatcher(plan)


def usual_dispatcher(plan: Plan) -> Dispatcher:
    """Return the same for a plan that says none; GPUs that `flex` does not run on are left the all-to-all."""
    stage, pools = first_stage(plan), pools_of(plan)
    apart = stage.expert_parallel * stage.expert_tensor_parallel > min(pool.domain_gpus for pool in pools)
    return "flex" if apart and flex_runs(plan) else "alltoall"


def flex_backend(plan: Plan) -> str:
    """Return what sends tokens for `flex`: DeepEP, or HybridEP, which also knows the NVL72s of Blackwell
    (Megatron-Bridge 0.6.2: training/flex_dispatcher_backend.py 102-119)."""
    return "deepep" if least_capability(plan) < BLACKWELL else "hybridep"


def dispatcher_arguments(plan: Plan) -> Arguments:
    """Return the dispatcher as arguments. DeepEP and HybridEP take probabilities in fp32 alone
    (token_dispatcher.py 1127 and 1303 of core_v0.19.2)."""
    dispatcher = dispatcher_of(plan)
    arguments: Arguments = (("--moe-token-dispatcher-type", dispatcher),)
    if dispatcher != "flex":
        return arguments
    biased = any(kind.moe and kind.moe.router_bias for kind in plan.model.kinds)  # whose arguments say so already
    exact: Arguments = () if biased else (("--moe-router-dtype", "fp32"),)
    return (*arguments, ("--moe-flex-dispatcher-backend", flex_backend(plan)), *exact)
