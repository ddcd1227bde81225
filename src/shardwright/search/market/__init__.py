"""What to rent: GPU types and counts are variables, and the answer is the Pareto front of time, dollars and risk.

* `shop`: one call from offers to the front
* `sweep`: numbers of machines of one type, all at once
* `mixes`: mixes of two offers
* `result`: what the search returns: the front, and the answers that it holds
"""
