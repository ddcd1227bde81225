"""From one generation to the next. No PyTorch.

* `generation_change`: halt, settle, survive, plan, move, start, and a recovery that only shows what it would do
* `coordinator`: takes machines in, and decides when the next generation begins
"""
