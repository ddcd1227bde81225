"""Time, memory and money of a strategy: pure functions from (description, strategy) to breakdowns in seconds, bytes
and dollars.

One strategy is a row of arrays (`strategy.Strategies`); every function takes many rows at once. The way down:
`operators` (what a layer computes) and `collectives` (what it sends) are timed by an `efficiency` model, `layers`
sums them per layer, `stages` per pipeline stage, `pipeline` runs the schedule, `memory` counts bytes, and `step`
puts an iteration together. Nothing here knows of search, files or terminals.
"""
