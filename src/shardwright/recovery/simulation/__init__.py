"""Replays which machines were there, and what they cost, over a plan: by the code that decides in a run.

* `traces`: machines by zone and time, with their prices
* `generator`: traces with losses in batches and lifetimes that are not exponential
* `presence`: which machines a run has when
* `shards`: what of the state each machine holds, and what a recovery moves
* `strategies`: local state first, and what it is compared with
* `replay`: one strategy over one trace
* `outcome`: useful tokens, dollars, and where the hours went
"""
