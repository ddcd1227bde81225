"""A run from start to end.

* `train`: one process from joining to its end
* `loop`: the training loop
* `feed`: samples read ahead, those held out too
* `inputs`: what a run reads, checked before it starts
* `course`: what a run that goes on may change, and what machines must agree on
* `start`: weights, or the newest whole checkpoint
* `finish`: the last checkpoint and summary
* `launch`: processes on this machine
* `worker`: devices and processes
* `seats`: which process takes which place
* `watchdog`: dead or stuck ranks, and whose fault an error is
* `lock`: one run in a folder
* `ending`: exit statuses, requests to stop, the end of a parent
* `settings`: what a run is told
* `metrics`: one CSV row a step, TensorBoard, Weights & Biases
* `describe`: `train --dry-run`
"""
