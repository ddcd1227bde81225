"""The search on one GPU type: best first, exact under the cost model.

* `search`: the search
* `bounds`: bounds of an arrangement in a few operations
* `layout_bounds`: bounds of a layout before it is expanded
* `completion`: from arrangements to complete strategies
* `frontier`: arrangements that wait, in the order of their bounds
* `best`: the best found, one for each layout
* `feasible`: whether anything fits, and nothing else
* `baselines`: what an expert would try
"""
