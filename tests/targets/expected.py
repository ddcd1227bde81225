"""What Megatron-LM and Megatron-Bridge must make of the options of a plan."""

from __future__ import annotations

from typing import Any

from shardwright.exporters.megatron.export import dispatcher_of_plan
from shardwright.plans.plan import Plan


def options(plan: Plan) -> dict[str, Any]:
    """What it must have made of the options of a plan."""
    said, stage = plan.job.options, plan.stages[0]
    selective = stage.recompute.granularity == "selective"
    return {
        "modules": sorted(said.recompute_modules or ("core_attn",)) if selective else None,
        "fp32_gradients": plan.job.precision in ("bf16", "fp8") and not said.bf16_gradients,
        "precision_aware": said.precision_aware or plan.optimizer.offload > 0,
        "types": [
            said.main_grads or "fp32",
            said.main_params or "fp32",
            said.exp_avg or "fp32",
            said.exp_avg_sq or "fp32",
        ],
        "fused_loss": said.loss != "unfused",
        "dispatcher": dispatcher_of_plan(plan) if plan.model.has_experts else None,
    }
