"""The search over clusters of several GPU types: replicas of different depth, types and micro-batch counts.

* `entry`: the search as the planner calls it
* `branch_and_bound/`: the search itself
* `tables/`: the figures it works on
* `bounds/`: what no composition beats
* `subproblem/`: what a composition can do
* `master/`: the integer program over compositions
* `drafts/`: from solutions to plans
* `heuristics/`: incumbents
* `dollars/`: the search by money
* `replanning/`: from the plan before
"""
