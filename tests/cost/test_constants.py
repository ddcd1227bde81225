"""Every constant of the cost model says where it is from, and a chosen one between what it may lie."""

from __future__ import annotations

from tests.cost.constants import REASON, constants


def test_every_constant_says_where_it_is_from() -> None:
    found = list(constants())
    assert len(found) > 50
    assert [f"{each.module}:{each.line} {each.name}" for each in found if not each.origin] == []


def test_what_is_chosen_has_a_range_or_a_reason() -> None:
    chosen = [each for each in constants() if each.origin == "chosen"]
    silent = [each for each in chosen if each.limits is None and not REASON.search(each.comment)]
    assert [f"{each.module}:{each.line} {each.name}" for each in silent] == []
    assert all(low < high for each in chosen if each.limits for low, high, _ in [each.limits])
