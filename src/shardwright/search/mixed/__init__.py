"""The search over clusters of several GPU types: replicas of different depth, types and micro-batch counts.

* `entry`: the search as the planner calls it
* `restrictions`: what pins and rules leave
* `offload`: optimizer state in host memory
* `branch_and_bound/`: the search itself
* `tables/`: the figures it works on
* `bounds/`: what no composition beats
* `subproblem/`: what a composition can do
* `master/`: the integer program over compositions
* `drafts/`: from solutions to plans
* `heuristics/`: incumbents
* `dollars/`: the search by money
* `one_mesh`: plans of equal replicas, which Megatron-LM can be told
* `replanning`: from the plan before

It is a branch and price: branch and bound over regions of an instance (numbers of replicas, types in use, links), each
bounded by a master problem over compositions whose columns are priced, not enumerated. The programs and bounds, with
the functions that implement them; `docs/methods-mixed-search.md` derives them:

    (P1) time of a composition   T >= W + (m - 1) tau - …, m_c(T) its inverse      bounds.compositions.micro_batches
    (P2) layers of a stage       most k within tau and the memory                  bounds.capacity.most_layers
    (P3) tail                    least A with sum_g k_g(A) >= L                    bounds.travel.least_tail
    (P4) master problem          max sum_c x_c m_c(T),  sum_c x_c c <= U,          master.relaxation.Relaxation.optimum
                                 a <= sum_c x_c <= b;  a by a premium
    (P5) pricing                 c is in a solution only if m_c(T) >= c pi - slack subproblem.eligible.possible
    (P6) exact subproblem        some split of c finishes m within T               subproblem.exact.least_by_splits
         where splits are few    the same, told one by one                         subproblem.exact.least_of_listed
    (P7) integer master problem  (P4) with x integer and each type in use          master.program.MasterProblem.solve
    (P8) bound of a region       the least T at which (P4) reaches M               master.regions.bounded
    (P9) money                   (P4) with the row  T sum_c x_c q c <= G           dollars.bounds.least_dollars
    (P10) screen                 V(y, T) < M, and by its prices V(y', T) < M       dollars.bounds.screened

Knobs are constants at the head of each module, set by hand. What half and twice of each does is in
`docs/mixed-knobs.md`: few change a plan of the five searches there, by 1 % at most, or what is proven.
"""
