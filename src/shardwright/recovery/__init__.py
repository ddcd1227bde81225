"""What recovery decides, without PyTorch.

* `quorum`: who goes on after a loss, which machine coordinates, and which machine each rank sits on
* `outlook`: how often machines are expected to be lost, and how fast bytes move
* `ways`: the ways in which a run can go on, quick repairs among them, and the cheapest of them by useful tokens
* `slow`: machines that are slow, not dead
* `transfer`: which machine reads which shard from where, by a linear program
* `simulation/`: plans replayed over traces of spot machines
"""
