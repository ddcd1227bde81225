"""The plan, the one result. It knows the descriptions of `spec` and nothing of how a plan is found or priced.

* `plan`: what a plan is
* `check`: whether it is legal, and its degrees divide what they split
* `trainer_options`: whether the options of a trainer go with its model and job
* `trainable`: what `shardwright train` does not run, of plans and of models
* `shares`: rows and state of each GPU under uneven FSDP
* `abilities`: what GPUs and links can do
* `cuts`: into which parts degrees cut matrices and sequences, and which trainers take
* `placement`: where each of its GPUs stands
* `mesh`: machines in the order of one mesh of ranks
* `document`: its file, and JSON schemas of it and of dataclasses
* `codec`: dataclasses to JSON data and back
* `ranking`: what a search returns, and plans in short, for a notebook and for a data frame
* `findings`: what it has to say beside plans and what would help, as values
"""
