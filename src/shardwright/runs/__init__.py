"""Training runs, read from what people have, and what a step takes in their good state. Nothing is executed.

* `read`: a run from a file
* `run`: what a run measured, step by step, and what it says of its setting
* `state`: the good state of a run, apart from warm-up, evaluations, checkpoints, stragglers and stalls
* `logs`: logs of trainers
* `trainers`: how each trainer writes a step, as data
* `mlperf`: result logs of MLPerf
* `event_files`: scalars of TensorBoard
* `tables`: columns of a CSV file
* `lines`: lines of a log of any length, in bounded memory
* `steps`: from the figures of lines to steps
"""
