"""Which properties of the operands of an operator lead to which property of its results.

* `signature`: how the dimensions of operands and results hang together, and the rules that follow
* `table`: a row for each operator
* `elementwise`: rows for operators that work element by element
* `views`: rows for operators that give a tensor another shape
* `selections`: rows for operators that work along given dimensions
* `candidates`: which cuts of the tensors of a graph are worth a rule
"""
