"""What a user says and the facts of the catalogue, as validated frozen objects.

`Model`, `Cluster` and `Job` (in `model`, `cluster`, `job`) are plain descriptions; the `load_*` modules make them from
files and short forms; `catalog` reads the facts in `data/`, every row of which has a source and a date. Nothing here
estimates, searches or writes, and nothing here imports a higher floor, numpy or any other heavy package. This module
re-exports nothing, so that importing one description does not load the readers of the others.
"""
