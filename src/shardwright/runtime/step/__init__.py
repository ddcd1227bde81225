"""One training step of a rank.

* `engine`: a rank ready to train, its layers compiled before the first step, its step, and the loss without training
* `pipeline`: passes in the order of the schedule, and moments of process or device
* `layered`: passes layer by layer, under uneven FSDP
* `channels`: who sends what between two stages, and the messages
* `unshard`: weights gathered for a unit
* `sync`: gradients summed layer by layer, and gathers and scatters of unequal parts
"""
