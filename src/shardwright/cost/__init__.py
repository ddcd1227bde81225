"""Time, memory and money of a strategy: pure functions from (description, strategy) to breakdowns in seconds, bytes
and dollars. One strategy is a row of arrays (`strategies.Strategies`); functions take many rows at once.

* `strategies`: the row type; plans as rows and back
* `context`: what stays fixed while many strategies are costed
* `compute/`: what a layer computes, and how fast
* `learned/`: efficiencies fitted to measured operators and links
* `network/`: collectives and messages
* `frameworks/`: what each training framework adds
* `layers/`: seconds, bytes and parameters of every layer
* `memory/`: bytes on one GPU
* `pipeline/`: schedules: exact time, bound, activations in flight
* `stage/`: what a stage keeps and repeats under every recomputation
* `iteration/`: one iteration of a uniform or mixed plan
* `predict`: the full account of a plan
* `trust/`: evidence and intervals
* `site/`: a calibration on the user's own runs
* `calibrate`: from plans and what they took to a calibration
* `money`: price, egress, interruptions
* `measured/`: efficiencies corrected by a machine profile

Nothing here knows of search, files or terminals.
"""
