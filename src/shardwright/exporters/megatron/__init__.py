"""Plans for Megatron-LM core_v0.19. `importers.megatron` is the way back.

* `export`: a plan as arguments
* `launch`: as a launch script
* `machines`: those of several GPU types in it
* `layout`: layers of each stage
* `model`: the model as arguments
* `hybrid`: blocks of a mixer or a feed-forward alone, as a pattern of letters
* `positions`: rotary positions and their scaling, as arguments and as fields of Megatron-Bridge
* `dispatcher`: which dispatcher sends tokens to their experts
* `difference`: what to change on a command line
* `limits`: what Megatron-LM cannot run
* `mesh`: what does not fit its one mesh of ranks
"""
