"""Launch lines of Megatron-LM core_v0.19, of older releases, and of trainers that are made of it.

* `read`: a plan from a launch script
* `plan`: a plan from flags
* `machines`: machines of several GPU types, in the order of their ranks
* `model`: a model from flags
* `options`: options of the trainer from flags
* `flags`: the arguments of a command line
* `flag_table`: every argument, its default, and what it means for a plan
* `vocabulary`: the size of a tokenizer's vocabulary
"""
