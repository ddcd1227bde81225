"""Training runs, read from what people have, and what a step takes in their good state. Nothing is executed.

* `read`: a run from a file, and columns of a CSV file
* `run`: what a run measured, step by step, what it says of its setting, and steps from the figures of lines
* `state`: the good state of a run, apart from warm-up, evaluations, checkpoints, stragglers and stalls
* `logs`: logs of trainers, of any length in bounded memory
* `trainers`: how each trainer writes a step, as data, and result logs of MLPerf
* `event_files`: scalars of TensorBoard
"""
