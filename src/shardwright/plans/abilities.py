"""What GPUs and links can do at all, whatever software runs on them: one answer for search, check and exporters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardwright.errors import Problem
from shardwright.plans.plan import Plan
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import Job, Precision

# Their attention is PyTorch's, or XLA's, which has fused kernels for every GPU and precision.
OWN_KERNELS = frozenset({"torchtitan", "fsdp", "jax", "eager", "train"})
FLASH_CAPABILITY = 8.0  # Ampere: FlashAttention-2's requirement (github.com/Dao-AILab/flash-attention, README)


def fused_attention_runs(gpu: Gpu, precision: Precision) -> bool:
    """Whether FlashAttention has a kernel: from Ampere on, in 16 bits and less. Other makers have kernels of their own,
    in the same precisions."""
    return precision != "fp32" and gpu.capability >= FLASH_CAPABILITY


def flash_attention_runs(gpu: Gpu, job: Job) -> bool:
    """Whether the job's framework has fused attention on a GPU: its own kernels, or those of FlashAttention."""
    return job.framework in OWN_KERNELS or fused_attention_runs(gpu, job.precision)


def tensor_parallel_overlaps(pool: NodePool, job: Job) -> bool:
    """Whether the job's framework can run tensor-parallel communication beside products: `train` does not, and user
    buffers of Transformer Engine are written by peers, over links that join GPUs directly."""
    return job.framework != OWN and pool.gpu.link_domain > 1


def computes_weights_apart(job: Job) -> bool:
    """Whether the job's framework can compute gradients of weights apart from those of activations (zero bubble): of
    plain products, which fp8 and adapters are not."""
    return job.framework == OWN and job.precision != "fp8" and not job.adapters


def makers(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the makers of GPUs: no library of collectives joins those of several. A GPU that the catalogue does not
    know counts as of any."""
    return tuple(sorted({gpu.vendor for gpu in gpus} - {"custom"}))


def framework_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what the framework that a uniform plan is priced for cannot run on its GPUs. Plans that are not uniform are
    the exporters' to judge."""
    if not plan.uniform:
        return
    name = plan.replicas[0].stages[0].gpu
    pool = next((pool for pool in plan.cluster.pools if pool.gpu.name == name), None)
    if pool is not None:
        yield from gpu_problems(plan, pool)


def gpu_problems(plan: Plan, pool: NodePool) -> Iterator[Problem]:
    """Yield what the framework that a plan is priced for cannot run on the GPUs of a pool."""
    job, name = plan.job, pool.gpu.name
    if plan.flash_attention and not flash_attention_runs(pool.gpu, job):
        message = f"FlashAttention needs 16 bits and compute capability 8.0; this is {job.precision} on {name}"
        hint = f"write false, or name a framework with kernels of its own: {', '.join(sorted(OWN_KERNELS))}"
        yield Problem("flash_attention", message, hint)
    if plan.overlap.tensor_parallel and not tensor_parallel_overlaps(pool, job):
        message = f"needs GPUs that write to each other's memory; those of {name} are joined by {pool.gpu.link}"
        yield Problem("overlap.tensor_parallel", message, "write false")
