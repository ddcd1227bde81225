"""The planner from description to ranking: real models on real clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwright
from shardwright import Cluster, Job, SpecError, check, evaluate, load_cluster, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.document import dumps
from shardwright.plans.findings import (
    BlockRecomputation,
    Cause,
    Change,
    Cheapest,
    Failure,
    Fastest,
    LimitsNotKept,
    MoreMachines,
    NoLegalLayout,
    NotCovered,
    Rejection,
    RulesDropAll,
    SeveralMakers,
    ShorterSequence,
    Unpin,
)
from shardwright.plans.plan import Granularity, Recompute
from shardwright.plans.ranking import NoPlan, Ranking
from shardwright.reports.words import in_words
from shardwright.rounding import coarse
from shardwright.search.planner import plan, predict
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import Space, parse_pins
from shardwright.spec.adapter import Adapter

MODEL = load_model("llama-3.1-8b")
CLUSTER = load_cluster("2x8xA100-SXM-80")
JOB = make_job(global_batch=64, seq_len=4096, tokens="1B")


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    return plan(MODEL, CLUSTER, JOB)


def test_plans_are_ranked_legal_and_different(ranking: Ranking) -> None:
    times = [found.iteration_seconds for found in ranking.plans]
    assert times == sorted(times)
    assert len(ranking.plans) == 3
    assert [check(found) for found in ranking.plans] == [()] * 3
    shapes = {(p.micro_batch, p.data_parallel, p.schedule, p.stages[0].gpus) for p in ranking.plans}
    assert len(shapes) > 1


def test_the_best_is_no_slower_than_any_baseline(ranking: Ranking) -> None:
    rivals = [entry.plan for entry in ranking.baselines if entry.plan is not None]
    assert rivals
    fitting = [rival for rival in rivals if rival.predicted.fit_probability >= 0.8]
    assert all(ranking.best.iteration_seconds <= rival.iteration_seconds for rival in fitting)


def test_every_candidate_is_accounted_for(ranking: Ranking) -> None:
    report = ranking.search
    assert report.candidates == report.costed + sum(count for _, count in report.rejected)
    assert report.candidates > 10**6


def test_equal_input_gives_equal_bytes(ranking: Ranking) -> None:
    again = plan(MODEL, CLUSTER, JOB)
    assert [dumps(found) for found in again.plans] == [dumps(found) for found in ranking.plans]


def test_the_breakdown_adds_up_and_memory_fits(ranking: Ranking) -> None:
    for found in ranking.plans:
        prediction = found.predicted
        assert prediction.time.total_seconds == pytest.approx(prediction.iteration_seconds)
        assert all(stage.total_bytes <= stage.capacity_bytes for stage in prediction.memory[0])
        assert prediction.interval[0] < prediction.iteration_seconds < prediction.interval[1]
        least = ranking.passed_over.plan if ranking.passed_over else ranking.best
        assert coarse(prediction.lower_bound_seconds) == coarse(least.iteration_seconds)


def test_evaluation_of_a_plan_found_is_its_prediction(ranking: Ranking) -> None:
    worst = ranking.plans[-1]
    assert predict(worst).prediction == pytest.approx(worst.prediction) or predict(
        worst
    ).iteration_seconds == pytest.approx(worst.iteration_seconds)
    result = evaluate(worst)
    assert result.plan.iteration_seconds == pytest.approx(worst.iteration_seconds)
    assert result.best.best.iteration_seconds == pytest.approx(ranking.best.iteration_seconds)


@pytest.mark.parametrize("granularity", ["none", "selective"])
def test_what_would_make_a_plan_fit_makes_it_sure_to(ranking: Ranking, granularity: Granularity) -> None:
    (replica,), kept = ranking.best.replicas, Recompute(granularity=granularity)
    replica = replace(replica, stages=tuple(replace(stage, recompute=kept) for stage in replica.stages))
    best = predict(replace(ranking.best, replicas=(replica,), prediction=None))
    fullest = max(stage.total_bytes for row in best.predicted.memory for stage in row)
    tight = replace(CLUSTER, pools=(replace(CLUSTER.pools[0], memory_bytes=1.03 * fullest),))
    found = evaluate(replace(best, cluster=tight, prediction=None))
    assert 0.5 < found.plan.predicted.fit_probability < 0.9
    (layers,) = [change.layers for change in found.remedies if isinstance(change, BlockRecomputation)]
    again = Recompute(granularity="full", method="block", layers=layers)
    stages = tuple(replace(stage, recompute=again) for stage in best.replicas[0].stages)
    mended = predict(replace(found.plan, replicas=(replace(best.replicas[0], stages=stages),), prediction=None))
    assert mended.predicted.fit_probability >= 0.9


def test_pins_hold() -> None:
    found = plan(MODEL, CLUSTER, JOB, space=parse_pins(["tp=4", "recompute=selective", "flash=off"])).best
    stage = found.stages[0]
    assert stage.tensor_parallel == 4
    assert stage.recompute.granularity == "selective"
    assert not found.flash_attention


def test_rules_drop_and_count() -> None:
    rules = parse_rules("no tp: $tp > 1\nno offload: $optimizer_offload_fraction > 0", "rules.txt")
    result = plan(MODEL, CLUSTER, JOB, rules=rules)
    assert all(found.stages[0].tensor_parallel == 1 for found in result.plans)
    assert dict(result.search.rejected)[Rejection(Cause.RULE, "no tp")] > 0
    assert result.search.candidates == result.search.costed + sum(count for _, count in result.search.rejected)


def test_a_stricter_fit_leaves_more_memory() -> None:
    def fullest(fit: float) -> float:
        prediction = plan(MODEL, CLUSTER, JOB, fit=fit).best.predicted
        assert prediction.fit_probability >= fit
        return max(stage.total_bytes for stage in prediction.memory[0])

    assert fullest(0.99) < 0.8 * CLUSTER.pools[0].memory_bytes


@pytest.mark.parametrize(
    ("name", "machine", "seq_len"), [("llama-2-13b", "2xA100-SXM-40", 4096), ("llama-3.1-70b", "4xGB200", 131072)]
)
def test_too_small_a_cluster_says_what_would_do(name: str, machine: str, seq_len: int) -> None:
    """Also where more machines are joined by faster links than the few that there are."""
    model, job = load_model(name), make_job(global_batch=64, seq_len=seq_len)
    result = plan(model, load_cluster(f"1x{machine}"), job)
    assert result.plans == ()
    assert result.infeasible is not None
    machines = next(found.machines for found in result.infeasible.remedies if isinstance(found, MoreMachines))
    assert plan(model, load_cluster(f"{machines}x{machine}"), job).plans
    assert not plan(model, load_cluster(f"{machines - 1}x{machine}"), job).plans


def test_a_shorter_sequence_is_told_where_it_fits_any_type() -> None:
    model, cluster = load_model("qwen2.5-0.5b"), load_cluster("1x1xT4+1x1xA10G")
    job = make_job(global_batch=1, seq_len=49152, precision="fp16", framework="train")
    alone = parse_pins(["offload=0", "pp=1"])
    nothing = plan(model, cluster, job, space=alone, efficiency=Analytic(), top=1).infeasible
    assert nothing is not None and ShorterSequence(24576) in nothing.remedies
    shorter = replace(job, seq_len=24576)
    assert plan(model, cluster, shorter, space=alone, efficiency=Analytic(), top=1).best.gpus_by_type == {"A10G": 1}


def test_pins_that_leave_nothing_are_named() -> None:
    result = plan(MODEL, CLUSTER, JOB, space=parse_pins(["tp=3", "recompute=none"]))
    assert result.infeasible is not None
    reason = NoLegalLayout(
        gpus=CLUSTER.gpus, gpu=CLUSTER.pools[0].gpu.name, global_batch=64, pins=("tp=3", "recompute=none")
    )
    assert result.infeasible == NoPlan(reason=reason, remedies=(Unpin("tp", legal=("1", "2", "4", "8")),))


def test_a_pin_is_named_as_the_reason_only_where_leaving_it_free_helps() -> None:
    job, space = make_job(global_batch=64, seq_len=2048, precision="fp16"), parse_pins(["flash=on", "tp=2"])
    nothing = plan(MODEL, load_cluster("1x8xV100-SXM2-32"), job, space=space).infeasible
    assert nothing is not None and nothing.remedies == (Unpin("flash", legal=("no",)),)


def test_train_is_given_no_sequences_in_parts_where_attention_has_sinks() -> None:
    job = make_job(global_batch=8, seq_len=8192, framework="train")
    model, cluster = load_model("gpt-oss-20b"), load_cluster("1x8xH100-SXM")
    nothing = plan(model, cluster, job, space=parse_pins(["cp=2"])).infeasible
    assert nothing is not None and nothing.remedies == (Unpin("cp", legal=("1",)),)


def test_rules_that_leave_nothing_are_named() -> None:
    result = plan(MODEL, CLUSTER, JOB, rules=parse_rules("all: $tp >= 1", "rules.txt"))
    assert result.infeasible is not None
    assert result.infeasible.reason == RulesDropAll(("all",))


def _job(**limits: object) -> Job:
    return make_job(global_batch=64, seq_len=4096, tokens="1B", **limits)  # type: ignore[arg-type]


def test_cheapest_within_a_deadline_and_fastest_within_a_budget(ranking: Ranking) -> None:
    fastest = ranking.best.predicted
    cheapest = plan(MODEL, CLUSTER, _job(objective="cost")).best.predicted
    assert fastest.dollars_total is not None
    assert cheapest.dollars_total is not None
    assert fastest.hours_total is not None
    assert cheapest.dollars_total <= fastest.dollars_total * 1.01, "but for what is as good"
    too_little = plan(MODEL, CLUSTER, _job(budget_dollars=cheapest.dollars_total * 0.5))
    assert too_little.infeasible is not None
    assert any(isinstance(remedy, Cheapest) for remedy in too_little.infeasible.remedies)
    too_soon = plan(MODEL, CLUSTER, _job(deadline_hours=fastest.hours_total * 0.5))
    assert too_soon.infeasible is not None
    assert any(isinstance(remedy, Fastest) for remedy in too_soon.infeasible.remedies)
    enough = plan(MODEL, CLUSTER, _job(deadline_hours=fastest.hours_total * 1.01)).best
    assert enough.iteration_seconds == pytest.approx(ranking.best.iteration_seconds)


SMALL_MODEL, SMALL_FIRST = (
    load_model("gpt2-xl"),
    "1x1xT4+1x1xV100-SXM2",
)  # the first type cannot hold the model, the second can


@pytest.mark.parametrize(
    ("limits", "remedy", "target"),
    [({"budget_dollars": 1.0}, Cheapest, "deepspeed"), ({"deadline_hours": 0.01}, Fastest, None)],
)
def test_limits_are_told_where_only_the_second_type_holds_the_model(
    limits: dict[str, float], remedy: type, target: str | None
) -> None:
    """Also where plans over both types are searched for, which takes much longer."""
    job = make_job(global_batch=16, seq_len=1024, tokens="1B", precision="fp16", **limits)  # type: ignore[arg-type]
    result = plan(SMALL_MODEL, load_cluster(SMALL_FIRST), job, exportable_to=target)
    assert result.infeasible is not None
    assert isinstance(result.infeasible.reason, LimitsNotKept)
    assert isinstance(result.infeasible.remedies[0], remedy)
    assert result.infeasible.remedies[-1] is Change.OTHER_MACHINES


def test_rules_are_named_where_only_the_second_type_holds_the_model() -> None:
    job = make_job(global_batch=16, seq_len=1024, precision="fp16")
    result = plan(SMALL_MODEL, load_cluster(SMALL_FIRST), job, rules=parse_rules("all: $tp >= 1", "rules.txt"))
    assert result.infeasible is not None
    assert result.infeasible.reason == RulesDropAll(("all",))


TWO_TYPES = load_cluster("2x8xA100-SXM-80+2x8xH100-SXM")


@pytest.fixture(scope="module")
def over_two_types() -> Ranking:
    return plan(MODEL, TWO_TYPES, JOB)


def test_a_rule_of_thumb_that_misses_the_deadline_is_no_rival(over_two_types: Ranking) -> None:
    whole = over_two_types
    (uniform,) = [
        entry.plan for entry in whole.baselines if entry.plan is not None and len(entry.plan.gpus_by_type) > 1
    ]
    hours = 0.5 * sum(found.predicted.hours_total or 0.0 for found in (uniform, whole.best))
    assert whole.best.iteration_seconds < uniform.iteration_seconds
    limited = plan(MODEL, TWO_TYPES, _job(deadline_hours=hours), gap=0.2)
    assert limited.plans
    assert [entry.failure for entry in limited.baselines if "uniform" in entry.rule] == [Failure.MISSES_LIMITS]


def test_two_types_together_beat_each_alone(over_two_types: Ranking) -> None:
    result = over_two_types
    types = {stage.gpu for stage in result.best.stages}
    assert types == {"A100-SXM-80", "H100-SXM"}
    assert check(result.best) == ()
    assert all(
        result.best.iteration_seconds <= entry.plan.iteration_seconds
        for entry in result.baselines
        if entry.plan is not None
    )
    assert result.search.gap is not None
    assert result.search.gap <= 0.01 + 1e-9


def test_a_missing_price_is_named_when_it_is_needed() -> None:
    unpriced = load_cluster("2x8xA800-SXM-80")
    assert isinstance(unpriced, Cluster)
    with pytest.raises(SpecError, match="price"):
        plan(MODEL, unpriced, _job(objective="cost"))


@pytest.mark.parametrize(("argument", "value"), [("top", 0), ("fit", 1.5), ("exportable_to", "megatrn")])
def test_bad_arguments_are_named(argument: str, value: object) -> None:
    with pytest.raises(SpecError):
        shardwright.plan(MODEL, CLUSTER, JOB, **{argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pin", "words"),
    [("vpp=2", "vpp=2"), ("sharding=zero2", "sharding=zero2")],
)
def test_pins_that_mixed_plans_lack_leave_the_plans_of_one_type(pin: str, words: str) -> None:
    cluster = load_cluster("1x8xA100-SXM-80+1x8xV100-SXM2-32")
    job = make_job(global_batch=64, seq_len=2048, precision="fp16")
    ranking = plan(load_model("llama-2-7b"), cluster, job, space=parse_pins([pin]), top=1)
    assert len({stage.gpu for stage in ranking.best.stages}) == 1
    assert any(words in in_words(kind) for kind in ranking.search.not_covered)


def test_full_sharding_over_several_types_is_uneven_fsdp() -> None:
    cluster = load_cluster("1x8xA100-SXM-80+1x8xV100-SXM2-32")
    job = make_job(global_batch=64, seq_len=2048, precision="fp16")
    ranking = plan(load_model("llama-2-7b"), cluster, job, space=parse_pins(["sharding=zero3"]), top=1)
    assert ranking.best.layered and len(ranking.best.gpus_by_type) == 2
    assert any("pipelines" in in_words(kind) for kind in ranking.search.not_covered)
    pipelines, uneven, even = ranking.kinds
    assert pipelines.plan is None and uneven.plan is not None
    assert uneven.plan.replicas == ranking.best.replicas
    assert even.plan is None or even.plan.iteration_seconds >= ranking.best.iteration_seconds


def test_a_pinned_pipeline_length_holds_in_mixed_plans() -> None:
    cluster = load_cluster("1x8xA100-SXM-80+1x8xV100-SXM2-32")
    job = make_job(global_batch=64, seq_len=2048, precision="fp16")
    for depth in (1, 2):
        space = parse_pins([f"pp={depth}"])
        ranking = plan(load_model("llama-2-7b"), cluster, job, space=space, top=3, gap=0.2)
        assert all(len(replica.stages) == depth for found in ranking.plans for replica in found.replicas)


def test_samples_longer_than_the_table_of_positions_are_refused() -> None:
    job = make_job(global_batch=64, seq_len=2048)
    with pytest.raises(SpecError, match="2048 is longer than the model's table of 1024 positions"):
        plan(load_model("gpt2-xl"), load_cluster("1x8xA100-SXM-80"), job)


def test_no_plan_is_over_gpus_of_several_makers() -> None:
    job = make_job(global_batch=16, seq_len=1024, framework="train")
    found = plan(load_model("gpt2-medium"), load_cluster("1x2xMI300X+1x2xH100-SXM+1x1xH20"), job, top=1)
    assert SeveralMakers(("amd", "nvidia")) in found.search.not_covered
    assert not check(found.best)
    (replica,) = found.best.replicas
    stages = tuple(
        replace(replica.stages[0], gpu=gpu, layers=((start, start + 12),))
        for start, gpu in ((0, "MI300X"), (12, "H100-SXM"))
    )
    both = replace(found.best, replicas=(replace(replica, stages=stages),))
    assert "no library joins" in " ".join(problem.message for problem in check(both))


def test_unequal_replicas_on_one_type_are_found_where_they_are_run_and_named_where_not() -> None:
    """Five samples on three GPUs: 2, 2 and 1 of them."""
    model, cluster = load_model("chatglm3-6b"), load_cluster("1x2xH100-SXM+1x3xMI300X")
    equal, unequal = (
        plan(model, cluster, make_job(global_batch=5, seq_len=16384, framework=framework), top=1)
        for framework in ("megatron", "train")
    )
    assert NotCovered.UNEQUAL_REPLICAS_OF_A_TYPE in equal.search.not_covered
    assert NotCovered.UNEQUAL_REPLICAS_OF_A_TYPE not in unequal.search.not_covered
    assert sorted(replica.micro_batches for replica in unequal.best.replicas) == [1, 2]
    assert unequal.best.iteration_seconds < 0.9 * equal.best.iteration_seconds


def test_degrees_of_a_thousand_are_searched() -> None:
    whole = load_model("mixtral-8x7b")
    layer = whole.layers[0]
    assert layer.moe is not None
    model = replace(whole, layers=(replace(layer, moe=replace(layer.moe, experts=1024, expert_width=256)),) * 2)
    job = make_job(global_batch=1024, seq_len=1024)
    pins = parse_pins(["tp=1", "pp=1", "cp=1", "ep=1024"])
    assert plan(model, load_cluster("128x8xH100-SXM"), job, space=pins, top=1).best.gpus == 1024


def test_a_plan_that_train_does_not_run_has_no_figure() -> None:
    job = make_job(global_batch=16, seq_len=2048, framework="train")
    found = plan(MODEL, load_cluster("1x8xH100-SXM"), job, space=parse_pins(["tp=2"]), top=1).best
    beside = replace(found, overlap=replace(found.overlap, tensor_parallel=True))
    for figure in (predict, evaluate):
        with pytest.raises(SpecError, match=r"overlap\.tensor_parallel"):
            figure(beside)


def test_an_evaluation_searches_unequal_degrees_where_it_is_asked_to() -> None:
    cluster = load_cluster("1x2xH100-SXM+1x2xA100-SXM-80")
    job = make_job(global_batch=8, seq_len=1024)
    found = plan(load_model("gpt2-medium"), cluster, job, top=1).best
    asked = evaluate(found, space=Space(tp_per_type=True)).best.search.not_covered
    assert NotCovered.UNEQUAL_DEGREES not in asked
    assert NotCovered.UNEQUAL_DEGREES in evaluate(found).best.search.not_covered


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("adapter", Adapter(frozen="int8")),
        ("fp8_storage", True),
        ("fused_loss", True),
        ("optimizer", "none"),
    ],
)
def test_a_job_that_train_does_not_run_is_refused_before_the_search(name: str, value: object) -> None:
    model, cluster = load_model("llama-3.2-1b"), load_cluster("1x2xH100-SXM")
    job = make_job(global_batch=8, seq_len=512, framework="train")
    assert plan(model, cluster, job).plans
    with pytest.raises(SpecError, match=rf"job\.{name}"):
        plan(model, cluster, replace(job, **{name: value}))


def test_the_certificate_names_tensor_parallel_groups_that_no_search_looks_at() -> None:
    """Halves of an optimizer's state go to the host faster on two machines than on one: 8 A100s in fours, tensor 8."""
    model, job = load_model("opt-1.3b"), make_job(global_batch=1, seq_len=512, precision="fp16")

    def left_out(machines: str, *pins: str) -> bool:
        found = plan(model, load_cluster(machines), job, space=parse_pins(pins), efficiency=Analytic(), top=1)
        return NotCovered.SPREAD_TENSOR_PARALLEL in found.search.not_covered

    assert left_out("2x4xA100-SXM-40", "pp=1") and left_out("1x8xH800-SXM+2x4xA100-SXM-40", "pp=1")
    assert not left_out("1x8xA100-SXM-40", "pp=1") and not left_out("2x4xA100-SXM-40", "tp=1,2,4")
