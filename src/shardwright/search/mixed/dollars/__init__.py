"""The search by dollars over numbers of machines.

* `cheapest`: the search, and whether a time can be met
* `ledger`: what it has found
* `machines`: what numbers of machines cost
* `bounds`: least dollars by the program, and numbers that cannot finish in time
"""
