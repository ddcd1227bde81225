"""Plans for Megatron-LM core_v0.19. `importers.megatron` is the way back.

* `export`: a plan as arguments, and what to change among them for another plan
* `launch`: as a launch script
* `layout`: layers of each stage
* `model`: the model as arguments
* `limits`: what Megatron-LM cannot run
"""
