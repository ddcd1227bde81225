"""A diagnosis on a terminal: the verdict, expected beside measured, the causes with what mends them, what would tell
more, and the best plan as the last row. As a JSON document: the figures of the screen, and what the page of `report`
draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwright.diagnosis.causes import Finding
from shardwright.diagnosis.diagnose import Diagnosis
from shardwright.diagnosis.memory import MemoryAccount
from shardwright.diagnosis.words import advice, record_advice
from shardwright.plans.document import to_document
from shardwright.plans.plan import Plan, StageMemory
from shardwright.plans.ranking import Origin
from shardwright.reports.text.evaluation import origin_text
from shardwright.reports.text.explain import changes
from shardwright.reports.text.layout import WIDTH, labelled, listed, paragraphs, table, wrapped
from shardwright.reports.text.strategy import SETTINGS
from shardwright.reports.words import in_words
from shardwright.traces.figures import RankFigures
from shardwright.units import clock, format_bytes, format_seconds

NAMES = {
    "compute": "computing",
    "host": "host, and idle",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "expert exchange",
    "pipeline": "pipeline: bubble and messages",
    "gradients": "gradients and sharded weights",
    "communication": "communication (groups not told apart)",
    "optimizer": "optimizer",
    "data": "data",
    "copies": "copies",
    "stalls": "stalls, of an average step",
}
MEMORY_NAMES = {
    "weights_bytes": "weights",
    "gradients_bytes": "gradients",
    "optimizer_bytes": "optimizer state",
    "activations_bytes": "activations",
    "logits_bytes": "logits",
    "buffers_bytes": "buffers",
    "context_bytes": "context and pieces",
}
BASIS = {"measured": "measured", "priced": "of the plan", "possible": "possible"}
Document = dict[str, Any]


def diagnosis_text(result: Diagnosis, origin: Origin, width: int = WIDTH) -> str:
    """Return a diagnosis as text, with what is to be known of how the plan was read."""
    certain = [row for row in result.findings if row.basis != "possible"]
    possible = [row for row in result.findings if row.basis == "possible"]
    parts = [
        wrapped(verdict_words(result), "", width),
        _terms_text(result, width) if result.case.step_seconds is not None or result.memory is None else "",
        "" if result.memory is None else _memory_text(result.memory, width),
        "\n".join(_findings(result, certain, "Causes, what saves most first", width)),
        "\n".join(_findings(result, possible, "Possible, and not told by what was recorded", width)),
        wrapped(untold_words(result), "", width),
        _records_text(result, width),
        _best_text(result, width),
        origin_text(origin, width),
    ]
    return paragraphs(parts)


def verdict_words(result: Diagnosis) -> str:
    case = result.case
    expected, step = format_seconds(case.expected_seconds), case.step_seconds
    low, high = (format_seconds(value) for value in case.prediction.interval)
    should = f"expected are {expected} ({low} to {high} in 8 of 10 runs)"
    plan_saves = max((row.seconds for row in result.findings if row.basis == "priced"), default=0.0)
    share = plan_saves / case.expected_seconds
    another = f" Another plan would save {share:.0%} of it." if share > 0.05 else ""
    if result.verdict == "out of memory":
        return "Out of memory."
    if step is None:
        return f"Nothing tells what a step takes; {should}.{another}"
    took = f"A step takes {format_seconds(step)}; {should}"
    if result.verdict == "as expected":
        return f"As expected. {took}.{another}"
    first = next((row for row in result.findings if row.basis == "measured"), None)
    why = f" Measured: {advice(first, case.plan).title}." if first is not None else ""
    opening = "Faster than expected" if result.verdict == "faster" else "Slower than it should be"
    return f"{opening}. {took}.{why}{another}"


def untold_words(result: Diagnosis) -> str:
    """Return what cannot be told, nothing where everything is."""
    if not result.untold:
        return ""
    seconds = format_seconds(result.unexplained_seconds)
    return f"Cannot be told from this: what {seconds} of a step beyond what is expected go to."


def _terms_text(result: Diagnosis, width: int) -> str:
    like = result.case.step_seconds or result.case.expected_seconds
    rows = []
    for term in result.terms:
        measured, hidden, excess = term.measured_seconds, term.hidden_seconds, term.excess_seconds
        rows.append(
            [
                NAMES[term.name],
                clock(term.expected_seconds, like=like),
                "?" if measured is None else clock(measured, like=like),
                "" if excess is None else clock(excess, like=like, sign="+"),
                "" if not hidden else clock(hidden, like=like),
            ]
        )
    step = result.case.step_seconds
    rows.append(
        [
            "a step",
            clock(result.case.expected_seconds, like=like),
            "?" if step is None else clock(step, like=like),
            "" if step is None else clock(step - result.case.expected_seconds, like=like, sign="+"),
            "",
        ]
    )
    columns = ("time", "expected", "measured", "more", "hidden beside")
    return table(columns, rows, words=("time",), spare=("hidden beside",), width=width)


def _findings(result: Diagnosis, rows: list[Finding], title: str, width: int) -> Iterator[str]:
    if rows:
        yield title
    like = result.case.step_seconds or result.case.expected_seconds
    for number, row in enumerate(rows, start=1):
        words = advice(row, result.case.plan)
        saves = f"saves {clock(row.seconds, like=like)} ({row.seconds / like:.0%})"
        amount = saves if row.seconds > 0.0 else "saves ?"
        yield wrapped(f"{number}. {words.title} ({BASIS[row.basis]}): {amount}", "  ", width)
        for line in row.evidence:
            yield labelled("     seen", line, width, column=15)
        yield labelled("     mend", words.remedy, width, column=15)
        if words.settings:
            yield labelled("     change", "; ".join(words.settings), width, column=15)
        yield labelled("     write", words.flags, width, column=15)


def _records_text(result: Diagnosis, width: int) -> str:
    rows = [record_advice(name, result.case.plan.job.framework) for name in result.records]
    return listed("What would tell", [f"{row.what}: {row.command}" for row in rows], width) if rows else ""


def _best_text(result: Diagnosis, width: int) -> str:
    best = result.best
    if best is None:
        return ""
    mine, other = result.case.expected_seconds, best.iteration_seconds
    pairs = changes(result.case.plan, best).items()
    if not pairs or other >= mine:
        return wrapped(
            f"The best plan for the same machines: none is faster than this one ({format_seconds(mine)}).", "", width
        )
    words = "; ".join(f"{SETTINGS[name]} {old} → {new}" for name, (old, new) in pairs)
    head = f"The best plan for the same machines: {format_seconds(other)} a step, {1.0 - other / mine:.0%} less"
    return wrapped(f"{head}: {words}", "", width)


def _memory_text(account: MemoryAccount, width: int) -> str:
    expected = account.expected
    rows = [
        *([MEMORY_NAMES[name], format_bytes(value), ""] for name, value in memory_terms(expected).items()),
        ["needed in all", format_bytes(expected.total_bytes), _or_blank(account.needed_bytes)],
        ["tensors", "", _or_blank(account.allocated_bytes)],
        ["reserved", "", _or_blank(account.reserved_bytes)],
        ["there is", format_bytes(expected.capacity_bytes), format_bytes(account.capacity_bytes)],
    ]
    head = f"Memory of a GPU of stage {account.stage}"
    parts = [head, table(("kind", "account", "measured"), rows, words=("kind",), width=width)]
    if account.notes:
        parts.append(listed("What stands out", account.notes, width))
    if account.changes:
        parts.append(listed("Single changes that make room", [in_words(change) for change in account.changes], width))
    elif account.needed_bytes is not None and account.needed_bytes > account.capacity_bytes:
        parts.append("No single change makes it fit: `shardwright evaluate` shows the best plan that does.")
    return "\n".join(parts)


def memory_terms(memory: StageMemory) -> dict[str, float]:
    return {name: getattr(memory, name) for name in MEMORY_NAMES}


def _or_blank(value: float | None) -> str:
    return "?" if value is None else format_bytes(value)


def diagnosis_document(result: Diagnosis, origin: Origin) -> Document:
    """Return a diagnosis as JSON data, with what is to be known of how the plan was read."""
    case, framework = result.case, result.case.plan.job.framework
    return {
        "diagnosis": 1,
        "verdict": result.verdict,
        "words": " ".join(part for part in (verdict_words(result), untold_words(result)) if part),
        "expected_seconds": case.expected_seconds,
        "interval_seconds": list(case.prediction.interval),
        "step_seconds": case.step_seconds,
        "unexplained_seconds": result.unexplained_seconds,
        "cannot_be_told": result.untold,
        "terms": [
            {
                "name": term.name,
                "expected_seconds": term.expected_seconds,
                "measured_seconds": term.measured_seconds,
                "hidden_seconds": term.hidden_seconds,
            }
            for term in result.terms
        ],
        "causes": [_finding(row, case.plan) for row in result.findings],
        "records": [
            {"name": row.name, "what": row.what, "command": row.command}
            for row in (record_advice(name, framework) for name in result.records)
        ],
        "ranks": [_rank(rank) for rank in case.ranks],
        "memory": None if result.memory is None else _memory(result.memory),
        "plan": to_document(case.plan),
        "best": None if result.best is None else to_document(result.best),
        "notes": list(origin.notes),
        "not_counted": list(origin.uncounted),
    }


def _finding(row: Finding, plan: Plan) -> Document:
    words = advice(row, plan)
    return {
        "name": row.cause,
        "title": words.title,
        "basis": row.basis,
        "detail": row.detail,
        "seconds": row.seconds,
        "saving_seconds": row.seconds,
        "evidence": list(row.evidence),
        "remedy": words.remedy,
        "changes": list(words.settings),
        "flags": words.flags,
    }


def _rank(rank: RankFigures) -> Document:
    return {
        "rank": rank.rank,
        "source": rank.source,
        "steps": rank.steps,
        "step_seconds": rank.step_seconds,
        "compute_seconds": rank.compute_seconds,
        "optimizer_seconds": rank.optimizer_seconds,
        "data_seconds": rank.data_seconds,
        "idle_seconds": rank.idle_seconds,
        "copy_seconds": rank.copy_seconds,
        "timeline": [list(span) for span in rank.timeline],
        "collectives": [
            {
                "kind": call.kind,
                "group": call.group,
                "ranks": call.ranks,
                "calls": call.calls,
                "hidden_seconds": call.hidden_seconds,
                "exposed_seconds": call.exposed_seconds,
            }
            for call in rank.collectives
        ],
    }


def _memory(account: MemoryAccount) -> Document:
    return {
        "replica": account.replica,
        "stage": account.stage,
        "account_bytes": memory_terms(account.expected),
        "account_total_bytes": account.expected.total_bytes,
        "allocated_bytes": account.allocated_bytes,
        "reserved_bytes": account.reserved_bytes,
        "needed_bytes": account.needed_bytes,
        "capacity_bytes": account.capacity_bytes,
        "notes": list(account.notes),
        "changes": [in_words(change) for change in account.changes],
    }
