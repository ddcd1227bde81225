"""Rank 1 of a run stands still in the forward pass of its fourth step, outside any wait."""

import os

if os.environ.get("RANK") == "1" and "RDZV" not in os.environ:
    from time import sleep

    from torch.nn import functional

    calls = [0]
    linear = functional.linear

    def still(*arguments, **options):
        calls[0] += 1
        while calls[0] > 250:
            sum(range(1000))
            sleep(0.01)  # which leaves the processor to other tests
        return linear(*arguments, **options)

    functional.linear = still
