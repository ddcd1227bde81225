"""The front keeps what no other point is as good as, and cuts rays where one of its points is."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.search.market.result import Front, Point

SIZES = st.integers(0, 5).map(float)
POINTS = st.tuples(SIZES, SIZES, SIZES)


def as_good(one: Point, other: Point) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def front_of(points: list[Point]) -> Front[int]:
    front: Front[int] = Front()
    for place, point in enumerate(points):
        front.offer(point, place)
    return front


@given(st.lists(POINTS, max_size=12))
def test_the_front_is_what_no_other_point_is_as_good_as(points: list[Point]) -> None:
    kept = {point for point, _ in front_of(points).points}
    wanted = {point for point in points if not any(as_good(other, point) and other != point for other in points)}
    assert kept == wanted


@given(st.lists(POINTS, max_size=12))
def test_the_first_of_equal_points_stays(points: list[Point]) -> None:
    for point, place in front_of(points).points:
        assert points.index(point) == place


@given(st.lists(POINTS, min_size=1, max_size=8), POINTS, st.integers(0, 40).map(lambda tenths: tenths / 8.0))
def test_a_ray_is_cut_where_a_point_becomes_as_good(points: list[Point], slope: Point, t: float) -> None:
    front = front_of(points)
    cut = float(front.cuts(np.array([slope]))[0])
    here = (t * slope[0], t * slope[1], t * slope[2])
    assert (t >= cut) == any(as_good(known, here) for known, _ in front.points)
