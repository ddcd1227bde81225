"""The search for shares of uneven FSDP: rows and state of every GPU, micro-batches and recomputation of every type.

* `search`: the best shares, even ones, and what no shares beat
* `options`: what a GPU of each type does with its rows
* `rows`: rows at given shares of the state, and a lower bound over all shares
* `shares`: shares of the state to try, and from shares to plans

GPUs of one type keep equal shares of the state and take rows that differ by one at most. For given state shares types
are independent of each other but for the sum of their rows: the least time of the slowest GPU is found by bisection
over the times that occur, exactly. State shares are a simplex of as many dimensions as there are types, on a grid that
is refined around its best points; each cell of the grid has a bound, at the corner with least state on every type, so
that the gap is stated. Cephalo (arXiv 2411.01075 §2.4) has a dynamic program over rows and even state beyond what
fits.
"""
