"""From solutions of the program to plans.

* `draft`: lines of a solution and plans, and what a whole plan takes
* `realise`: compositions to replicas, with micro-batches for each and what they take together
* `splits`: good layer splits
* `split_times`: seconds, recomputation and memory of splits
"""
