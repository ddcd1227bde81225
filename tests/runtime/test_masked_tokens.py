"""Training to fill in masked tokens: what is hidden, and the loss over it."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from shardwright.runtime.job.feed import NO_TARGET, hidden_tokens
from shardwright.runtime.model.loss import summed_loss
from shardwright.runtime.model.parallel import TensorGroup

VOCAB, MASK = 1000, 3
ROWS = np.random.default_rng(1).integers(10, VOCAB, size=(40, 200))


def test_a_sixth_of_each_sample_is_hidden_and_all_else_is_as_it_was() -> None:
    seen, targets = hidden_tokens(ROWS, 8, 1, MASK, VOCAB)
    hidden = targets != NO_TARGET
    assert (hidden.sum(axis=1) == 30).all()
    assert (targets[hidden] == ROWS[hidden]).all() and (seen[~hidden] == ROWS[~hidden]).all()
    assert 0.75 < (seen[hidden] == MASK).mean() < 0.85
    assert 0.07 < (seen[hidden] == ROWS[hidden]).mean() < 0.13


def test_what_is_hidden_depends_on_the_number_of_the_sample_and_the_seed() -> None:
    whole, part = hidden_tokens(ROWS, 8, 1, MASK, VOCAB), hidden_tokens(ROWS[5:9], 13, 1, MASK, VOCAB)
    assert all((one[5:9] == other).all() for one, other in zip(whole, part, strict=True))
    assert (whole[1] != hidden_tokens(ROWS, 8, 2, MASK, VOCAB)[1]).any()
    assert (whole[1] != hidden_tokens(ROWS, 9, 1, MASK, VOCAB)[1]).any()


def test_the_loss_is_the_mean_over_hidden_tokens_times_all_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 20, 8, generator=generator), torch.randn(50, 8, generator=generator)
    bias = torch.randn(50, generator=generator)
    targets = torch.randint(50, (2, 20), generator=generator)
    targets[torch.rand(2, 20, generator=generator) < 0.8] = NO_TARGET
    found, expected = ([value.clone().requires_grad_() for value in (x, weight, bias)] for _ in range(2))
    loss = summed_loss(*found[:2], targets, 50, TensorGroup(), bias=found[2], partly=True)
    logits = functional.linear(expected[0], expected[1], expected[2]).flatten(0, 1)
    mean = functional.cross_entropy(logits, targets.flatten(), ignore_index=NO_TARGET)
    torch.testing.assert_close(loss, 40 * mean)
    loss.backward()
    (40 * mean).backward()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
