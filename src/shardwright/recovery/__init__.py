"""What recovery decides, without PyTorch.

* `quorum`: who goes on after a loss, and which machine coordinates
* `seats`: which machine each rank sits on
* `outlook`: how often machines are expected to be lost, and how fast bytes move
* `ways`: the ways in which a run can go on, quick repairs among them, and the cheapest of them by useful tokens
* `slow`: machines that are slow, not dead
* `transfer`: which machine reads which shard from where
* `transfer_program`: the linear program behind that
* `simulation/`: plans replayed over traces of spot machines
"""
