"""Scans in chunks equal the recurrences that they are, a token at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.plans import trainable
from shardwright.runtime.model import mixers, parameters, scans
from shardwright.runtime.model.scans import delta_scan, selective_scan, state_space_scan

WIDTH, STATE = 3, 5


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=30)
@given(positions=st.integers(1, 23), chunk=st.integers(1, 9), groups=st.integers(1, 2), shared=st.integers(1, 3))
def test_the_state_space_scan_is_a_recurrence(positions: int, chunk: int, groups: int, shared: int) -> None:
    heads = groups * shared
    value, decay = drawn(1, 2, positions, heads, WIDTH), -drawn(2, 2, positions, heads).abs()
    key, query = (drawn(seed, 2, positions, groups, STATE) for seed in (3, 4))
    state, expected = torch.zeros(2, heads, STATE, WIDTH, dtype=torch.float64), []
    for at in range(positions):
        keys, queries = (part[:, at].repeat_interleave(shared, dim=1) for part in (key, query))
        state = decay[:, at].exp()[..., None, None] * state + keys[..., None] * value[:, at][..., None, :]
        expected.append((queries[..., None] * state).sum(2))
    found = state_space_scan(value, decay, key, query, chunk)
    torch.testing.assert_close(found, torch.stack(expected, dim=1), rtol=1e-9, atol=1e-9)


@settings(max_examples=30)
@given(
    positions=st.integers(1, 23),
    chunk=st.integers(1, 9),
    part=st.integers(1, 5),
    channels=st.booleans(),
    strength=st.sampled_from((1.0, 300.0)),
)
def test_the_delta_scan_is_a_recurrence(positions: int, chunk: int, part: int, channels: bool, strength: float) -> None:
    value = drawn(1, 2, positions, 2, WIDTH)
    decay = -strength * drawn(2, 2, positions, 2, STATE if channels else 1).abs()
    query, key = (drawn(seed, 2, positions, 2, STATE) for seed in (3, 4))
    key, rate = key / key.norm(dim=-1, keepdim=True), drawn(5, 2, positions, 2).sigmoid()
    state, expected = torch.zeros(2, 2, STATE, WIDTH, dtype=torch.float64), []
    for at in range(positions):
        state = decay[:, at].exp()[..., None] * state
        error = value[:, at] - (key[:, at][..., None] * state).sum(2)
        state = state + key[:, at][..., None] * (rate[:, at][..., None] * error)[..., None, :]
        expected.append((query[:, at][..., None] * state).sum(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "DELTA_CHUNK", chunk)
        patch.setattr(scans, "DELTA_PART", part)
        found = delta_scan(query, key, value, decay if channels else decay[..., 0], rate)
    torch.testing.assert_close(found, torch.stack(expected, dim=1), rtol=1e-9, atol=1e-9)


@settings(max_examples=30)
@given(positions=st.integers(1, 23), chunk=st.integers(1, 9))
def test_the_selective_scan_is_a_recurrence(positions: int, chunk: int) -> None:
    value, step = drawn(1, 2, positions, WIDTH), drawn(2, 2, positions, WIDTH).abs()
    key, query = (drawn(seed, 2, positions, STATE) for seed in (3, 4))
    decay = -drawn(5, WIDTH, STATE).abs()
    state, expected = torch.zeros(2, WIDTH, STATE, dtype=torch.float64), []
    for at in range(positions):
        added = (step[:, at] * value[:, at])[..., None] * key[:, at][:, None]
        state = (step[:, at][..., None] * decay).exp() * state + added
        expected.append((state * query[:, at][:, None]).sum(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scans, "SELECTIVE_CHUNK", chunk)
        result = selective_scan(value, step, decay, key, query)
    torch.testing.assert_close(result, torch.stack(expected, dim=1), rtol=1e-9, atol=1e-9)


def test_mixers_are_planned_for_train_exactly_where_the_runtime_has_them() -> None:
    assert set(trainable.MIXERS) == set(mixers.MIXERS) == set(parameters.MIXERS)
