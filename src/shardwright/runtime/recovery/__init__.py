"""Training that outlives its machines.

A keeper on each machine holds snapshots, starts workers and joins generations; it has no PyTorch. What is higher in
this list imports nothing of what is below it:

* `wire`: channels with heartbeats between processes, and calls that may never be answered
* `run`: options, the generation before, and the step on which survivors settle
* `state/`: the state of a run in three tiers, and how it moves
* `fleet/`: the machines of a run, and whether those that are there may go on
* `worker/`: the process of a GPU (PyTorch)
* `change/`: from one generation to the next
* `keeper/`: the process of a machine

One lost machine, in nine files:

1. `wire`: no heartbeat comes for longer than may be, or the connection ends: the channel is lost.
2. `change/coordinator`: drops the member, notes the cause of a recovery, and begins the change to the next generation.
   (Where the coordinator is lost, `keeper/keeper` asks who is there, and the first of the generation coordinates.)
3. `change/generation_change`: that change in its order, quorum, halt, settle, survive, plan, move, start. It calls the
   files after this one, those on other machines over their channels.
4. `fleet/membership`: a majority, or who else may, claims to go on, which one group alone can.
5. `keeper/coordinator_requests`: each keeper's answers: it promises the generation, and passes the halt on.
6. `keeper/worker_pool`: halts the workers, has them settle, and later gives each GPU its rank.
7. `worker/training`: says where its rank is, catches up by the vote that others saw, hands over what is newer than the
   last snapshot, and takes its next rank.
8. `state/inventory`: the newest step that is whole in what all machines hold. `shardwright.recovery` decides the plan.
9. `state/transfers`: who reads what from whom, and the reading, piece by piece, every hash checked.
10. `worker/training` again: the ranks form process groups anew, take their state and train on."""
