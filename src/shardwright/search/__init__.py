"""Proposes strategies, legal by construction, asks `cost` for their time and memory, keeps the best and bounds the
rest. Start reading at `planner`.

* `planner`: one call from a description to ranked plans, and from a plan to its evaluation
* `kinds`: the search on machines of one type
* `several`: those over machines of several types, one for each kind of plan
* `sure`: plans that keep limits with a probability
* `ranked`: the best plans of all searches in one order, and what the best is shown beside
* `account`: how many candidates all searches had, and what became of them
* `objective`: what is best: time or dollars, within budget and deadline
* `sizing`: ways to train on some GPUs, and the memory of each
* `first_plans`: plans at once, unproved
* `ladder`: from a plan to better ones, a change at a time
* `replan`: a new plan after machines went or came
* `space/`: what is searched
* `uniform/`: one GPU type, exact
* `mixed/`: several GPU types, with a certificate
* `equal_shares`: data parallelism of equal shares over several GPU types
* `uneven/`: uneven FSDP: shares of rows and state, with a bound
* `programs`: the fastest SPMD program for a job, on a small cluster
* `rules/`: the user's rules and filters
* `infeasible`: why there is no plan, and the smallest changes of the question that give one
* `fitting`: single changes under which a plan fits in memory
* `nearby`: other batches and numbers of machines that pay, and the same run on fewer machines
* `renting`: what a plan on rented machines is expected to come to, interruptions counted
* `market/`: what to rent

Numbers in capitals are limits of effort, set by hand on the cases of `benchmarks/`, or grids of the declared space
(`space/`). Limits decide how long a search takes and how near its proof comes, never whether a bound holds;
`docs/mixed-knobs.md` has what half and twice of them do. Nothing here knows of output.
"""
