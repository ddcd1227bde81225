"""Proposes strategies, legal by construction, asks `cost` for their time and memory, keeps the best and bounds the
rest. Start reading at `planner`.

* `planner`: one call from a description to ranked plans, and from a plan to its evaluation
* `kinds`: one search for each kind of plan
* `sure`: plans that keep limits with a probability
* `ranked`: the best plans of all searches in one order
* `rivals`: what the best plan is shown beside
* `account`: how many candidates all searches had, and what became of them
* `combinations`: one ranking of searches with several options of the trainer
* `objective`: what is best: time or dollars, within budget and deadline
* `sizing`: ways to train on some GPUs, and the memory of each
* `first_plans`: plans at once, unproved
* `ladder`: from a plan to better ones, a change at a time
* `replan`: a new plan after machines went or came
* `space/`: what is searched
* `uniform/`: one GPU type, exact
* `mixed/`: several GPU types, with a certificate
* `uneven/`: uneven FSDP: shares of rows and state, with a bound
* `programs/`: SPMD programs on small clusters
* `rules/`: the user's rules and filters
* `advice/`: why nothing was found, and what would help
* `renting/`: what a plan on rented machines comes to
* `market/`: what to rent

Numbers in capitals are limits of effort, set by hand on the cases of `benchmarks/`, or grids of the declared space
(`space/`). Limits decide how long a search takes and how near its proof comes, never whether a bound holds;
`docs/mixed-knobs.md` has what half and twice of them do. Nothing here knows of output.
"""
