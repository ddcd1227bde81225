"""A run from start to end.

* `train`: the training loop
* `start`: weights, or a checkpoint
* `finish`: the last checkpoint and summary
* `launch`: processes on this machine
* `worker`: devices and processes
* `watchdog`: dead or stuck ranks
* `stop_request`: stopping in good order
* `settings`: what a run is told
* `metrics`: one CSV row a step
* `describe`: `train --dry-run`
"""
