"""The search on one GPU type: best first, exact under the cost model.

* `search`: the search
* `bounds`: bounds of an arrangement in a few operations, and of a layout before it is expanded
* `completion`: from arrangements to complete strategies
* `leanest`: the least memory in which any strategy fits
* `best`: the best found, one for each layout, and arrangements that wait
* `baselines`: what an expert would try
"""
