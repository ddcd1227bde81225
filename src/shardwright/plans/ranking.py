"""`Ranking`: what a search returns, the best plans with what was tried and why the rest fell out."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A plan that an expert would try, and the rule of thumb behind it. `plan` is None where the rule gives no plan
    that fits; `reason` says why."""

    rule: str
    plan: Plan | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchReport:
    """How the search went. `candidates` is the size of the declared space; every candidate is in exactly one count
    of `rejected`, or was costed (`costed`). `phases` are seconds by name, in order. `not_covered` names kinds of plans
    that neither the search nor its bound looked at, `gap` is how far the best plan is above the bound at most. Where
    dollars were minimised over several GPU types, no plan costs less than `lower_bound_dollars` an iteration."""

    candidates: int
    costed: int
    seconds: float
    rejected: tuple[tuple[str, int], ...]
    phases: tuple[tuple[str, float], ...]
    not_covered: tuple[str, ...] = ()
    gap: float | None = None
    lower_bound_dollars: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """Why no plan exists, and changes that would give one, nearest first."""

    reason: str
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Plans, best first (none if `infeasible` is set), with the baselines they were compared to."""

    plans: tuple[Plan, ...]
    baselines: tuple[Baseline, ...]
    search: SearchReport
    infeasible: Infeasible | None = None

    @property
    def best(self) -> Plan:
        """The first plan; raises LookupError where there is none."""
        if not self.plans:
            raise LookupError(self.infeasible.reason if self.infeasible else "no plan")
        return self.plans[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A user's own plan with its prediction, and the best plans for the same model, machines and job. `remedies` are
    single changes with which a plan fits that does not."""

    plan: Plan
    best: Ranking
    remedies: tuple[str, ...] = ()
