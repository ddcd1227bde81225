"""Launch lines of Megatron-LM core_v0.19, of older releases, and of trainers that are made of it.

* `read`: a plan from a launch script, machines of several GPU types in the order of their ranks
* `plan`: a plan from flags, options of the trainer among it
* `model`: a model from flags
* `flags`: the arguments of a command line, their defaults, and what each means for a plan
"""
