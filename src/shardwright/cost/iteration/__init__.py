"""One iteration: stages, pipeline, gradient synchronisation, update.

* `step`: stage times and what follows the pipeline
* `batch`: seconds for rows of equal pipeline shape
* `orthogonalisation`: what Muon adds to the update
* `footprint`: peak memory of every rank, and the recomputation that fits
* `evaluate`: the verdict on many rows
* `mixed`: the exact iteration of any plan
* `layered/`: the iteration of uneven FSDP
* `replica_time`: what an iteration takes, replica by replica
* `timeline`: its events in time
* `lanes`: its stages as uniform pipelines
* `places`: its stages as columns
* `links`: links between them
* `sites`: what collectives wait for links between sites, and what a tied embedding sends over them
* `shards`: what unequal degrees cost in memory
"""
