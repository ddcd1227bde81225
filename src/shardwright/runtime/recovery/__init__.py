"""Training that outlives its machines.

A keeper on each machine holds snapshots and starts workers. Keepers have no PyTorch; modules that need it say so.

* `options`: what a keeper is told
* `keeper`: the process of a machine
* `lookout`: what the machines that answer say of themselves
* `arbiter`: whether the machines that are there may go on
* `etcd`: claims to go on, kept in etcd
* `coordinator`: takes machines in, and decides when the next generation begins
* `gathering`: waiting for the machines with which it can go on
* `members`: the machines that have joined it
* `advance`: how far the ranks of a generation are
* `causes`: why the next generation has to begin
* `history`: when machines came and were lost
* `passage`: the way from one generation to the next
* `base`: where that way begins, and where a keeper is
* `uploads`: steps in the object store
* `duties`: what a keeper does for the coordinator
* `protection`: copies of a machine's part of a step
* `desk`: what a keeper does for workers and other keepers
* `staff`: the worker processes of a machine
* `channel`: requests and replies over one connection
* `rows`: pieces and machines as JSON data
* `store_server`: the key-value store of a generation
* `snapshots`: mapped files that outlive their writers
* `disk`: the local disk
* `cloud`: the object store
* `patience`: calls to services that may never answer
* `inventory`: what survives, and the newest whole step
* `needs`: what each machine needs
* `moves`: a plan of transfers as orders
* `fetch`: reading pieces from where a plan says
* `settlement`: the step that all survivors reach
* `rehearsal`: a recovery that only shows what it would do
* `notices`: that a machine is to be taken away
* `paces`: which machines are slow
* `errands`: work beside the main course
* `record`: what a recovery took
* `worker`: the process of a GPU (PyTorch)
* `interval`: when it takes snapshots, and how far it goes from them
* `training`: its training in one generation, on a thread of its own (PyTorch)
* `post`: where a rank is in it (PyTorch)
* `reporting`: what a machine records of its steps (PyTorch)
* `rank_logs`: what a rank prints, in files
* `link`: its thread to the keeper
* `reform`: process groups torn down and built again (PyTorch)
* `generation_store`: torch's view of the store (PyTorch)
* `handover`: state to the keeper and back (PyTorch)
"""
