"""What recovery decides, without PyTorch.

* `quorum`: who goes on after a loss
* `decide`: stay, replan, or wait
* `transfer`: which machine reads which shard from where
* `transfer_program`: the linear program behind that
"""
