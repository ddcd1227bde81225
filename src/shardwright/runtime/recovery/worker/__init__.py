"""The process of a GPU, which outlives generations (PyTorch).

* `link`: its thread to the keeper, and what the machine records of its steps
* `rendezvous`: process groups torn down and built again
* `snapshot`: state to the keeper and back, and when
* `training`: the orders that it takes, and a rank in one generation: its state, and training on a thread of its own"""
