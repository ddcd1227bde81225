"""From what a user has to a diagnosis: read it, look for causes, say what is left unexplained and what would tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned import default_efficiency
from shardwright.diagnosis.case import Case, Sign, costed, median, padding_of, signs_of
from shardwright.diagnosis.causes import Finding, findings
from shardwright.diagnosis.memory import MemoryAccount, memory_account
from shardwright.diagnosis.terms import Term, terms
from shardwright.diagnosis.words import record_of
from shardwright.errors import Problem, SpecError, bad, reject
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import holding
from shardwright.runs.read import read_run
from shardwright.runs.run import MeasuredRun, RunSetting
from shardwright.runs.state import FAST, GOOD, WARM_UP, good_state
from shardwright.traces.memory import OutOfMemory, out_of_memory
from shardwright.traces.read import METRICS, read_records, read_train_folder

Verdict = Literal["as expected", "slower", "faster", "out of memory", "not measured"]
LONGEST_TEXT = 400_000_000  # characters of a log that are looked at for signs
PARAMETERS_APART = 0.1  # of the model, by which log and launch may count parameters differently
MOST_RECORDS = 3


@record(slots=False)
class Diagnosis:
    """Why a run is slow. `terms` are expected beside measured; `findings` the causes, what saves most first, those that
    are only possible last. `unexplained_seconds` are what a step takes beyond what is expected and no cause that was
    measured explains; `untold` says that this is most of it. `records` name what would tell (`words.record_advice`).
    `best` is the best plan for the same machines, None where it was not asked for."""

    case: Case
    verdict: Verdict
    terms: tuple[Term, ...]
    findings: tuple[Finding, ...]
    unexplained_seconds: float
    untold: bool
    records: tuple[str, ...]
    memory: MemoryAccount | None = None
    best: Plan | None = None


def diagnose(
    plan: Plan,
    sources: Sequence[Path | str] = (),
    *,
    step_seconds: float | None = None,
    data: Path | str | None = None,
    efficiency: Efficiency | None = None,
    best: bool = True,
) -> Diagnosis:
    """Return why a run of `plan` is slow.

    `sources` are files of any kind: a log, traces of one rank or several (Kineto, Nsight Systems as sqlite, `train`),
    snapshots of memory, a text with a message of full memory, or the folder of a run of `train`. `step_seconds` is what
    a step took, where nothing else tells; `data` is the token file that the run trains on. With `best`, the best plan
    for the same machines is searched too. Raises SpecError for a plan that is not legal, a file that cannot be read,
    and a log that contradicts the plan.
    """
    if step_seconds is not None and not 0.0 < step_seconds < math.inf:
        raise bad("`step_seconds=`", f"{step_seconds:g} s is no time of a step", "give what one takes, 15.6")
    reject(check(plan))
    model_of_time = efficiency or default_efficiency()
    case = read_case(plan, [Path(source) for source in sources], step_seconds, data, model_of_time)
    return diagnosed(case, _best(case.plan, model_of_time) if best else None)


def diagnosed(case: Case, best: Plan | None = None) -> Diagnosis:
    memory = memory_account(case)
    causes = findings(case)
    if memory is not None and case.step_seconds is None:  # whether it fits is asked, not how fast it is
        causes = tuple(row for row in causes if row.basis != "priced")
    low, high = case.prediction.interval[0], case.limit_seconds
    step = case.step_seconds
    measured = [row for row in causes if row.basis == "measured"]
    excess = 0.0 if step is None else step - case.expected_seconds
    inside = sum(row.seconds for row in measured if row.cause not in ("stalls", "padding"))
    unexplained = max(excess - inside, 0.0)
    untold = step is not None and step > high and unexplained > 0.5 * excess
    stalls = sum(row.seconds for row in measured if row.cause == "stalls")  # beside the steps of the good state
    verdict: Verdict = "as expected"
    if case.out_of_memory is not None:
        verdict = "out of memory"
    elif step is None:
        verdict = "not measured"
    elif step + stalls < low:
        verdict = "faster"
    elif measured or step > high:
        verdict = "slower"
    return Diagnosis(
        case=case,
        verdict=verdict,
        terms=terms(case),
        findings=causes,
        unexplained_seconds=unexplained,
        untold=untold,
        records=tuple(islice(dict.fromkeys(_records(case, causes, untold)), MOST_RECORDS)),
        memory=memory,
        best=best,
    )


def read_case(
    plan: Plan,
    sources: Sequence[Path],
    step_seconds: float | None,
    data: Path | str | None,
    efficiency: Efficiency,
) -> Case:
    """Return all that the sources tell of a run of `plan`. Raises SpecError for what cannot be read, for two logs, and
    where a log contradicts the plan."""
    folders = [source for source in sources if source.is_dir()]
    records = read_records([source for source in sources if not source.is_dir()])
    texts = list(records.others)
    ranks, saving = records.ranks, 0.0
    if len(folders) > 1:
        raise bad(str(folders[1]), "is a second run", "diagnose a run at a time")
    for folder in folders:
        of_folder = read_train_folder(folder)
        # Medians of many steps say more than a trace of one.
        ranks, saving = tuple(of_folder.ranks) or tuple(ranks), of_folder.saving_seconds
        texts += [folder / METRICS] if (folder / METRICS).exists() else []
    signs, message, run = _read_texts(texts, plan)
    state = good_state(run) if run is not None else None
    known = [rank.step_seconds for rank in ranks if rank.counted]
    step = state.seconds if state is not None else step_seconds
    stalled = [] if state is None else [
        (reason, part.extra_seconds / _iterations(run))
        for reason, part in state.left_out.items()
        if reason not in (WARM_UP, FAST, GOOD) and part.extra_seconds > 0.0
    ]  # fmt: skip
    stalled += [("checkpoint", saving)] if saving > 0.0 else []
    return Case(
        plan=costed(plan, efficiency),
        efficiency=efficiency,
        step_seconds=step_seconds or step or (median(known) if known else None),
        spread=state.spread if state is not None else 0.0,
        run=run,
        state=state,
        stall_seconds=tuple(stalled),
        ranks=ranks,
        signs=signs,
        padding=None if data is None else padding_of(Path(data), plan.job.seq_len),
        snapshots=records.snapshots,
        out_of_memory=message,
    )


def _iterations(run: MeasuredRun | None) -> float:
    return float(run.steps.covers.sum()) if run is not None else 1.0


def _read_texts(paths: Sequence[Path], plan: Plan) -> tuple[tuple[Sign, ...], OutOfMemory | None, MeasuredRun | None]:
    """Return signs, a message of full memory, and the run that texts tell of. A text without steps is none where it
    tells one of the former. Raises SpecError for one that tells nothing."""
    signs: list[Sign] = []
    message: OutOfMemory | None = None
    run: MeasuredRun | None = None
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(LONGEST_TEXT)
        of_text = signs_of(text.splitlines(), str(path))
        full = out_of_memory(text)
        signs += of_text
        message = message or full
        try:
            read = read_run(path, sequences=plan.job.sequences)
        except SpecError:
            if not of_text and full is None:
                raise
            continue
        if run is not None:
            raise bad(str(path), f"is a log beside {run.name}", "diagnose a run at a time")
        run = _timed(read, path, plan)
    return tuple(signs), message, run


def _timed(run: MeasuredRun, path: Path, plan: Plan) -> MeasuredRun:
    """Return a run that agrees with the plan, with seconds of steps made from rates by the plan's batch where the log
    has rates alone. Raises SpecError where it contradicts the plan."""
    require_agreement(plan, run.setting, run.name)
    if np.isfinite(run.steps.seconds).any():
        return run
    job = plan.job
    return read_run(
        path, global_batch=job.global_batch, seq_len=job.seq_len, sequences=job.sequences, gpus=plan.cluster.gpus
    )


def require_agreement(plan: Plan, setting: RunSetting, name: str) -> None:
    """Raise SpecError with every setting of which the log says something else than launch or plan."""
    stages = plan.stages
    ours: dict[str, object] = {
        "gpus": plan.gpus,
        "global_batch": plan.job.global_batch,
        "seq_len": plan.job.seq_len,
        "pp": max(len(replica.stages) for replica in plan.replicas),
        "dp": plan.data_parallel,
        "tp": max(stage.tensor_parallel for stage in stages),
        "cp": max(stage.context_parallel for stage in stages),
        "ep": max(stage.expert_parallel for stage in stages),
        "micro_batch": plan.micro_batch,
    }
    if not plan.uniform:
        ours = {key: ours[key] for key in ("gpus", "global_batch", "seq_len")}
    problems = []
    for key, value in ours.items():
        logged = getattr(setting, key)
        if logged is not None and logged != value:
            line = setting.lines.get(key)
            place = f"{name}, line {line}" if line else name
            problems.append(
                Problem(place, f"the run had {key} {logged}, launch or plan say {value}", "give the launch of this log")
            )
    total = float(plan.model.parameters)
    if setting.parameters and abs(setting.parameters / total - 1.0) > PARAMETERS_APART:
        words = f"the model had {setting.parameters:.3g} parameters, that of the plan has {total:.3g}"
        problems.append(Problem(name, words, "name the model of this log"))
    reject(problems)


def _records(case: Case, causes: Sequence[Finding], untold: bool) -> Iterable[str]:
    """Return what would tell more: of what is possible, and of what nothing explains."""
    full = case.out_of_memory is not None and not case.snapshots
    first = holding((full, "snapshot"), (not full and case.step_seconds is None, "log"))
    if not untold:
        return first
    return (
        *first,
        *holding((not case.ranks, "trace")),
        *(record_of(finding.cause) for finding in causes if finding.basis == "possible"),
        *holding((len(case.ranks) == 1 and case.plan.gpus > 1, "ranks")),
        "clocks" if case.ranks else "network",
    )


def _best(plan: Plan, efficiency: Efficiency) -> Plan | None:
    from shardwright.trainers.plan import evaluate

    ranking = evaluate(plan, efficiency=efficiency, top=1).best
    return ranking.plans[0] if ranking.plans else None
