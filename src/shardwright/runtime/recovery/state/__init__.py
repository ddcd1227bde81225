"""The state of a run: what survives of it in memory, on disk and in the object store, and how it moves. No PyTorch.

* `inventory`: what machines hold, and the newest whole step
* `snapshots`: mapped files that outlive their writers, and the local disk
* `transfers`: what each machine needs, the orders that bring it there, and reading it
* `cloud`: the object store"""
