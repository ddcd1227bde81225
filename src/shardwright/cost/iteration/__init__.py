"""One iteration: stages, pipeline, gradient synchronisation, update.

* `step`: stage times and what follows the pipeline
* `gathers`: how often weights are gathered and gradients summed
* `batch`: seconds for rows of equal pipeline shape, and the verdict on any rows
* `orthogonalisation`: what Muon adds to the update
* `moments`: when a rank may be fullest, and what it has then
* `footprint`: its peak memory, of these the fullest
* `room`: bounds of that, and the least recomputation that fits
* `mixed`: the exact iteration of any plan
* `layered/`: the iteration of uneven FSDP
* `replica_time`: what an iteration takes, replica by replica
* `timeline`: its events in time
* `lanes`: its stages as uniform pipelines
* `places`: its stages as columns, and what unequal degrees cost in memory
* `links`: links between stages and between sites, and what waits for them
"""
