"""A run from start to end.

* `train`: one process from joining to its end
* `loop`: what training begins with, weights or the newest whole checkpoint, and its steps
* `feed`: samples read ahead, those held out too
* `course`: what a run reads and is told: what one that goes on may change, and what machines must agree on
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
