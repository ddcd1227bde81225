"""The plan, the one result. It knows the descriptions of `spec` and nothing of how a plan is found or priced.

* `plan`: what a plan is
* `check`: whether it is legal
* `degrees`: whether its degrees divide what they split
* `paths`: its replicas and stages, with their paths in the file
* `trainer_options`: whether the options of a trainer go with its model and job
* `trainable`: what `shardwright train` does not run
* `trainable_models`: which models it runs
* `shares`: rows and state of each GPU under uneven FSDP
* `abilities`: what GPUs and links can do
* `placement`: where each of its GPUs stands
* `mesh`: machines in the order of one mesh of ranks
* `document`: its file
* `schema`: JSON schemas of it and of dataclasses
* `codec`: dataclasses to JSON data and back
* `summary`: plans in short, for a notebook and for a data frame
* `ranking`: what a search returns
* `findings`: what it has to say beside plans, as values
* `remedies`: what would help, as values
"""
