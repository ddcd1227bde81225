"""The user's rules: what is true of a candidate drops it. There is no `eval`.

* `rules`: reading and applying them
* `parser`: text to syntax tree
* `tree`: the tree
* `check`: the variables of rules, and what may be compared with what
* `evaluation`: columns of candidates, and what a rule means over them
* `filters`: rules and measurements applied to candidates, and rules of one axis as pins
"""
