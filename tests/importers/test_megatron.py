"""Reading Megatron-LM launch lines: round trips, scripts as people write them, and errors that name the flag."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright import SpecError, load_model, make_job
from shardwright.exporters.megatron.export import dispatcher_of_plan, to_megatron
from shardwright.exporters.megatron.launch import launch_script
from shardwright.exporters.megatron.limits import unsupported
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute
from shardwright.search import planner
from shardwright.search.space.axes import parse_pins
from shardwright.spec.options import STATE, Options
from tests.golden.plans import H100, LLAMA_2_70B, LLAMA_3_1_8B, PLANS, cluster_of
from tests.importers.texts import plan_from_megatron
from tests.nightly import examples
from tests.plans.random_plans import uniform_plans
from tests.targets.plans import option_plans

FEW = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])


def assert_same(read: Plan, plan: Plan) -> None:
    """Equal but for what arguments do not say: names of the model and all of its forward pass, the label, tokens that are
    no whole steps."""
    assert plan.job.tokens is None or read.job.iterations == -(-plan.job.tokens // plan.job.tokens_per_iteration)
    named: dict[str, Any] = {
        "name": plan.model.name,
        "family": plan.model.family,
        "forward_pass": plan.model.forward_pass,
    }
    model = replace(read.model, **named)
    assert replace(read, model=model, job=replace(read.job, tokens=plan.job.tokens)) == plan


@FEW
@given(uniform_plans())
def test_arguments_give_the_plan_back(plan: Plan) -> None:
    assert unsupported(plan) == ()
    export = to_megatron(plan)
    launch = f"deepspeed --num-gpus {sum(export.machine_gpus)} pretrain_gpt.py "
    read = plan_from_megatron(launch + shlex.join(export.arguments), cluster=plan.cluster)
    assert_same(read.plan, plan)
    assert plan_from_megatron(
        launch + shlex.join(export.arguments), cluster=plan.cluster, model=plan.model
    ).plan.model == (plan.model)


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
@pytest.mark.parametrize("name", PLANS)
def test_launch_scripts_give_the_plan_back(name: str, launcher: str) -> None:
    plan = PLANS[name]
    script = launch_script(plan, to_megatron(plan), launcher)  # type: ignore[arg-type]
    read = plan_from_megatron(script, cluster=plan.cluster)
    assert_same(replace(read.plan, job=replace(read.plan.job, fp8_recipe=plan.job.fp8_recipe)), plan)
    assert "--data-path" in read.ignored and "--lr" in read.ignored


def test_chunks_without_a_layer_are_found_and_come_back() -> None:
    """94 layers in 96 chunks, of which the first has the embedding alone and the last the loss."""
    model, cluster = load_model("qwen3-235b-a22b"), cluster_of(32)
    job = make_job(global_batch=1024, seq_len=4096, framework="megatron")
    pins = parse_pins(["pp=8", "vpp=12", "tp=4", "ep=16", "micro_batch=2", "first_layers=0", "last_layers=0"])
    best = planner.plan(model, cluster, job, space=pins).best
    assert best is not None
    plan = replace(best, prediction=None)
    export = to_megatron(plan)
    assert_same(plan_from_megatron(launch_script(plan, export, "torchrun"), cluster=cluster).plan, plan)
    layout = export.arguments[export.arguments.index("--pipeline-model-parallel-layout") + 1]
    assert layout == "E|" + "t|" * 94 + "L"
    flags = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    words = shlex.join(export.arguments).replace(f"--pipeline-model-parallel-layout '{layout}'", flags)
    words += " --num-virtual-stages-per-pipeline-rank 12"
    read = plan_from_megatron("torchrun --nnodes 32 --nproc-per-node 8 pretrain_gpt.py " + words, cluster=cluster)
    assert read.plan.replicas == plan.replicas


SCRIPT = r"""
#!/bin/bash
# Runs the model; --tensor-model-parallel-size 64 in a comment does not count
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=4
CHECKPOINT_PATH=$1

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr $MASTER_ADDR
)
GPT_ARGS="
    --num-layers 32 \
    --hidden-size 4096 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 \
    --seq-length=4096 --max-position-embeddings 4096 \
    --position-embedding-type rope --rotary-base 500000 \
    --swiglu --disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights \
    --attention-dropout 0 --hidden-dropout 0
"
PARALLEL_ARGS=(--tensor-model-parallel-size $TP --pipeline-model-parallel-size 2)
PARALLEL_ARGS+=(--sequence-parallel --num-layers-per-virtual-pipeline-stage 4)  # interleaved

if [ -n "$DEBUG" ]; then
  set -x
fi

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    $GPT_ARGS \
    "${PARALLEL_ARGS[@]}" \
    --vocab-size 128256 --micro-batch-size 2 --global-batch-size 64 --train-samples 6400 \
    --bf16 --use-distributed-optimizer --overlap-grad-reduce --recompute-activations \
    --data-path $DATA_PATH --save ${CHECKPOINT_PATH} --log-interval 10 2>&1 | tee log.txt
"""


def test_a_script_as_people_write_them() -> None:
    reading = plan_from_megatron(SCRIPT, cluster=cluster_of(4))
    plan = reading.plan
    usual = {"norm_epsilon": LLAMA_3_1_8B.norm_epsilon, "rotary_scaling": LLAMA_3_1_8B.rotary_scaling}
    assert replace(plan.model, name=LLAMA_3_1_8B.name, family="llama", max_position=131072, **usual) == LLAMA_3_1_8B
    (replica,) = plan.replicas
    assert (replica.count, replica.micro_batches, len(replica.stages)) == (2, 16, 2)
    assert replica.stages[1].layers == ((4, 8), (12, 16), (20, 24), (28, 32))
    assert replica.stages[0].tensor_parallel == 4
    assert replica.stages[0].recompute == Recompute(granularity="selective")
    assert plan.schedule.virtual_stages == 4
    assert plan.overlap == Overlap(grad_reduce=True, pipeline=True)
    assert plan.optimizer == OptimizerPlan(sharding="zero1")
    assert plan.sequence_parallel and plan.flash_attention
    assert plan.job.tokens == 6400 * 4096 and plan.job.precision == "bf16"
    assert reading.ignored == ("--data-path", "--save", "--log-interval")
    assert reading.notes == (
        "the script's defaults are taken where the environment decides: SLURM_NNODES=2 (others: --env NAME=value)",
        "16 of the cluster's 32 GPUs are used",
        "Megatron-LM's defaults are taken where nothing is said: --cross-entropy-loss-fusion off, "
        "--grad-reduce-in-bf16 off, --use-precision-aware-optimizer off",
    )


LINE = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention "
    "--num-query-groups 8 --vocab-size 32000 --swiglu --normalization RMSNorm --disable-bias-linear "
    "--position-embedding-type rope --max-position-embeddings 4096 --seq-length 4096 --micro-batch-size 1 "
    "--global-batch-size 128 --bf16 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 "
)


def read(line: str, **options: object) -> Plan:
    return plan_from_megatron(line, cluster=cluster_of(8), **options).plan  # type: ignore[arg-type]


def test_defaults_are_megatrons() -> None:
    plan = read(LINE)
    assert plan.optimizer == OptimizerPlan() and plan.overlap == Overlap()
    assert plan.model.tied_embeddings and plan.model.dropout
    assert plan.replicas[0].stages[3].layers == ((60, 80),)
    assert plan_from_megatron(LINE, cluster=cluster_of(8)).notes == (
        "the text does not say how many GPUs run; those of the cluster are assumed (64)",
        "the text does not say how long the run is",
        "Megatron-LM's defaults are taken where nothing is said: --use-distributed-optimizer off, "
        "--overlap-grad-reduce off, --cross-entropy-loss-fusion off, --grad-reduce-in-bf16 off, "
        "--use-precision-aware-optimizer off",
    )
    assert plan.job.options == Options(loss="unfused")
    experts = plan_from_megatron(LINE + "--num-experts 8 --sequence-parallel", cluster=cluster_of(8))
    assert experts.plan.job.options == Options(loss="unfused", dispatcher="allgather")
    assert experts.notes[-1].endswith("--moe-token-dispatcher-type allgather")
    assert read(LINE.replace("--global-batch-size 128", "")).job.global_batch == 2
    assert read(LINE + "--use-megatron-fsdp").optimizer == OptimizerPlan(sharding="zero3")
    assert read(LINE + "--use-distributed-optimizer --optimizer-cpu-offload").optimizer.offload == 1.0
    assert read(LINE + "--tensor-model-parallel-size 4").replicas[0].count == 4
    assert not read(LINE + "--attention-backend unfused").flash_attention


def test_arrays_alone_are_enough() -> None:
    words = LINE.split("--tensor")
    assert read(f"A=(\n{words[0]}\n)\nB=( --tensor{words[1]})") == read(LINE)


def test_a_named_model_stands_in_for_the_arguments() -> None:
    line = "--micro-batch-size 1 --global-batch-size 128 --seq-length 4096 --tensor-model-parallel-size 8 --bf16"
    assert read(line, model=LLAMA_2_70B).model is LLAMA_2_70B
    with pytest.raises(SpecError, match="--num-layers: is 32, but the model llama-2-70b has 80"):
        read(line + " --num-layers 32", model=LLAMA_2_70B)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "contains no Megatron-LM argument"),
        ("hello world", "contains no Megatron-LM argument"),
        (LINE + "--num-layers", "--num-layers: has no value"),
        (LINE + "--num-layers many", "--num-layers: 'many' cannot be read"),
        (LINE + "--num-layers -3", "--num-layers: '-3' cannot be read"),
        (LINE + "--tensor-model-parallel-size $TP", "--tensor-model-parallel-size: its value is .*--env TP=…"),
        (LINE + "--tensor-model-parallel-size ${TP}", "--env TP=…"),
        (LINE + "--global-batch-size $(nproc)", "--global-batch-size: .*write the value itself"),
        (LINE + "$EXTRA_ARGS", "EXTRA_ARGS. may hold arguments"),
        (LINE + "--save out ${EXTRA[@]}", "EXTRA.*may hold arguments"),
        (LINE + "--bf16 --fp16", "--fp16: stands beside --bf16"),
        (LINE + "--tensor-model-parallel-size 0", "--tensor-model-parallel-size: is 0"),
        (LINE + "--tensor-model-parallel-size 7", "does not divide the 64 GPUs"),
        (LINE + "--global-batch-size 3", "--global-batch-size: 3 is no multiple"),
        (LINE + "--num-virtual-stages-per-pipeline-rank 3", "20 layers of a rank do not divide by 3"),
        (LINE + "--pipeline-model-parallel-layout Et*80L", "1 stages for 4 pipeline ranks"),
        (LINE + "--pipeline-model-parallel-layout 'Et|t|t|tL'", "places 4 layers, the model has 80"),
        (LINE + "--pipeline-model-parallel-layout 'Ez|t|t|tL'", "layout: it contains 'z'"),
        (LINE + "--recompute-granularity full", "--recompute-method: is missing"),
        (LINE + "--recompute-granularity full --recompute-method block", "--recompute-num-layers: is missing"),
        (LINE + "--recompute-granularity some", "'some' is not a value"),
        (LINE + "--optimizer muon", "--optimizer: 'muon' is not a value"),
        (
            LINE + "--hybrid-layer-pattern MM",
            "--hybrid-layer-pattern: hybrid models are not described by arguments alone",
        ),
        (LINE + "--overlap-param-gather", "overlap.param_gather"),
        (LINE + "--expert-model-parallel-size 2", "no experts"),
        (
            LINE + "--num-experts 8 --moe-layer-freq ([0]*3+[1]*4)",
            "line 1: bash refuses it: syntax error near unexpected token",
        ),
        (LINE + "--num-experts 8 --moe-layer-freq '[0]*3+[1]*4'", "lists 7 layers, the model has 80"),
        (LINE + "--num-experts 8 --moe-layer-freq '__import__(0)'", "--moe-layer-freq: .*cannot be read"),
        (LINE + "--optimizer-cpu-offload --optimizer-offload-fraction 2", "--optimizer-offload-fraction: is 2"),
        (LINE.replace("--micro-batch-size 1", ""), "--micro-batch-size: is missing"),
        ("torchrun --nnodes 99 --nproc_per_node 8 pretrain_gpt.py " + LINE, "starts 792 processes"),
        (LINE + "'unclosed", "line 1: bash refuses it: unexpected EOF while looking for matching"),
    ],
)
def test_errors_name_the_flag_and_the_remedy(line: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read(line)
    assert all(problem.hint for problem in caught.value.problems)


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        read(LINE + "--num-layers x --hidden-size $H --recompute-method none")
    places = [problem.path.split(": ")[-1] for problem in caught.value.problems]
    assert places[:3] == ["--num-layers", "--hidden-size", "--recompute-method"]


def test_one_gpu_type_is_needed() -> None:
    cluster = cluster_of(8)
    mixed = replace(cluster, pools=(*cluster.pools, replace(cluster.pools[0], gpu=replace(H100, name="A100-SXM-80"))))
    with pytest.raises(SpecError, match="A100-SXM-80, H100-SXM"):
        plan_from_megatron(LINE, cluster=mixed)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.sampled_from(
            [
                *LINE.split(),
                "$X",
                "${X[@]}",
                "X=1",
                "X=(",
                ")",
                "'",
                '"',
                "#",
                "\n",
                "\\\n",
                ";",
                "0",
                "-1",
                "--moe-layer-freq",
                "--pipeline-model-parallel-layout",
                "Et|tL",
            ]
        ),
        max_size=60,
    )
)
def test_no_text_is_a_traceback(words: list[str]) -> None:
    try:
        read(" ".join(words))
    except SpecError as error:
        assert error.problems


@pytest.mark.parametrize("name", option_plans())
def test_options_of_the_trainer_come_back(name: str) -> None:
    """A fused loss and the dispatcher that runs are what a plan has that says none; gradients in fp32 what Megatron-LM
    does where it is told nothing."""
    plan = option_plans()[name]
    read = plan_from_megatron(launch_script(plan, to_megatron(plan), "torchrun"), cluster=plan.cluster)
    said = plan.job.options
    if said.precision_aware:
        said = replace(said, **{field: getattr(said, field) or "fp32" for field in STATE})  # type: ignore[arg-type]
    if said.loss == "fused":
        said = replace(said, loss=None)
    if said.grad_reduce == "fp32":
        said = replace(said, grad_reduce=None)
    if said.dispatcher == dispatcher_of_plan(replace(plan, job=replace(plan.job, options=Options()))):
        said = replace(said, dispatcher=None)
    assert_same(read.plan, replace(plan, job=replace(plan.job, options=said)))
    assert read.uncounted == ()


def test_what_no_option_tells_is_not_counted() -> None:
    plan = PLANS["llama-2-70b-interleaved"]
    words = [*to_megatron(plan).arguments, "--recompute-granularity", "selective", "--recompute-modules", "mhc", "mlp"]
    read = plan_from_megatron(shlex.join(words), cluster=plan.cluster)
    assert read.plan.job.options.recompute_modules == ("mlp",)
    assert any("--recompute-modules mhc mlp" in line for line in read.uncounted)
    sharded = shlex.join(to_megatron(option_plans()["bf16 reduction"]).arguments).replace(
        "--use-distributed-optimizer", "--use-distributed-optimizer --use-megatron-fsdp --use-precision-aware-optimizer"
    )
    fsdp = plan_from_megatron(f"{sharded} --exp-avg-dtype bf16", cluster=option_plans()["bf16 reduction"].cluster)
    assert fsdp.plan.job.options == Options() and any("--exp-avg-dtype" in line for line in fsdp.uncounted)


def test_fsdp_by_its_older_name() -> None:
    line = LINE + " --use-custom-fsdp --data-parallel-sharding-strategy optim_grads_params"
    assert plan_from_megatron(line, cluster=cluster_of(4)).plan.optimizer.sharding == "zero3"


def test_older_names_and_layers_without_transformer_engine() -> None:
    def plan(words: str, line: str = LINE) -> Plan:
        return plan_from_megatron(f"{line} {words}", cluster=cluster_of(4)).plan

    assert (plan("--fp8-hybrid").job.precision, plan("--fp8-hybrid").job.fp8_recipe) == ("fp8", "delayed")
    assert plan("--sequence-parallel", LINE.replace("--num-layers", "--encoder-num-layers")).model.hidden == 8192
    assert not plan("--transformer-impl local").flash_attention
    assert plan("--transformer-impl local --use-flash-attn").flash_attention
