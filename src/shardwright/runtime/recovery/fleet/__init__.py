"""The machines of a run: membership, quorum and what is noted of them. No PyTorch.

* `membership`: who stands how, who has joined, waiting for enough, and whether those may go on, by quorum and a
  claim that one group alone can make
* `observations`: progress, slow machines, losses and the causes of a recovery
"""
