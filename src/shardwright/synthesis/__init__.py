"""Synthesises SPMD programs for unequal devices: which operator is sharded how, in which ratios, by which collectives.

What a program is made of:

* `graph`: the operators of a training step as data, their operations and bytes, and how ranks hold their tensors
* `models/`: graphs of well-known models, built without tracing
* `program`: what every rank does, with its check, JSON and text

What may be chosen:

* `rules/`: the table of rules for operators
* `shorten`: a graph with three occurrences of each repeated block
* `decisions`: what a search decides, as columns of rules and of conversions

What it costs:

* `machines`: devices and links, and what a conversion takes on them
* `prices`: rules and conversions in seconds and bytes
* `schedule`: when a rank computes, sends and forgets
* `memory`: bytes held through the step, and what fits

How it is chosen:

* `linear`: linear and integer programs
* `integer_program`: rules at fixed shares as an integer program
* `best_rules`: its best solution
* `choice`: what a choice of rules comes to
* `neighbourhoods`: better rules near a choice
* `ratios`: the best shares for fixed rules, shares to start from, and whole units for exact shares
* `synthesize`: rules and shares in turns, the best of several starts, in whole units
* `extract`: from rules to a program
* `baselines`: what others would run, and what would help where nothing fits

Nothing here knows of PyTorch: tracing a module into a graph and running a program belong to `spmd`.
"""
