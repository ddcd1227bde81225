"""Replays which machines were there, and what they cost, over a plan: by the code that decides in a run.

* `traces`: machines by zone and time, with their prices, recorded or generated, and which of them a run has when
* `strategies`: local state first, what it is compared with, and what each moves in a recovery
* `replay`: one strategy over one trace, and what came of it
"""
