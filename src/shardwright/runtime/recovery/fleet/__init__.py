"""The machines of a run: membership, quorum and what is noted of them. No PyTorch.

* `claims`: whether the machines that are there may go on, by quorum and a claim that one group alone can make
* `membership`: who stands how, who has joined, and waiting for enough
* `observations`: progress, slow machines, losses and the causes of a recovery
"""
