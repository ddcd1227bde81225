"""The user's rules: what is true of a candidate drops it. There is no `eval`.

* `rules`: reading and applying them
* `parser`: text to syntax tree
* `tree`: the tree
* `variables`: what a rule may speak of
* `column`: its values for many candidates
* `check`: what may be compared with what
* `evaluation`: what a rule means, over columns
* `filters`: rules and measurements applied to candidates
* `as_pins`: rules of one axis as pins
"""
