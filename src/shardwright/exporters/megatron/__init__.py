"""Plans to and from Megatron-LM core_v0.19.

* `export`: a plan as arguments
* `files`: what `export --to megatron` writes
* `launch`: as a launch script
* `flags`: the arguments that say something about a plan
* `layout`: layers of each stage
* `model`: the model as arguments
* `limits`: what Megatron-LM cannot run
* `read_args`: a plan from a launch line
* `read_model`: a model from arguments
* `shell`: the words of a script, without running it
"""
