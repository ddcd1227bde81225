"""Which properties of the operands of an operator lead to which property of its results.

`signature` says how the dimensions of operands and results hang together and derives the rules from it; `table` has a
row for each operator, `views`, `selections` and `elementwise` the rows that depend on arguments; `candidates` finds out
which cuts of each tensor of a graph are worth a rule.
"""
