"""The search by dollars over numbers of machines.

* `cheapest`: the search
* `ledger`: what it has found
* `machines`: what numbers of machines cost
* `money`: least dollars by the program
* `screen`: numbers that cannot finish in time
* `decide`: whether a time can be met
"""
