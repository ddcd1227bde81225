"""Which properties of the operands of an operator lead to which property of its results.

* `signature`: how the dimensions of operands and results hang together, and the rules that follow
* `table`: a row for each operator
* `selections`: rows for operators that act along given dimensions or regroup them
* `candidates`: which cuts of the tensors of a graph are worth a rule
"""
