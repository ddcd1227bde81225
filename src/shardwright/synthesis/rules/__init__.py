"""Which properties of the operands of an operator lead to which property of its results.

* `signature`: how the dimensions of operands and results hang together, and the rules that follow
* `table`: a row for each operator, those that work element by element among them
* `selections`: rows for operators that work along given dimensions, or give a tensor another shape
* `candidates`: which cuts of the tensors of a graph are worth a rule
"""
