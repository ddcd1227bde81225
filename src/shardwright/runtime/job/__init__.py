"""A run from start to end.

* `train`: one process from joining to its end
* `loop`: the training loop
* `feed`: samples read ahead
* `masked_tokens`: which tokens are hidden from models that see all of a sequence
* `held_out`: the loss on held-out data
* `trackers`: TensorBoard, Weights & Biases
* `inputs`: what a run reads, checked before it starts
* `course`: what a run that goes on may change, and what machines must agree on
* `start`: weights, or a checkpoint
* `resume`: the newest whole checkpoint
* `finish`: the last checkpoint and summary
* `launch`: processes on this machine
* `worker`: devices and processes
* `seats`: which process takes which place
* `watchdog`: dead or stuck ranks
* `meeting`: ranks wait for each other
* `standing`: whether a thread waits
* `faults`: whether an error is a rank's own
* `parent`: ranks end with what started them
* `lock`: one run in a folder
* `status`: exit statuses
* `stop_request`: stopping in good order
* `settings`: what a run is told
* `metrics`: one CSV row a step
* `describe`: `train --dry-run`
"""
