"""Pipeline schedules with unequal stages.

* `schedule`: orders of work
* `simulate`: exact time
* `bound`: lower bounds in closed form
* `in_flight`: micro-batches whose activations a rank holds
"""
