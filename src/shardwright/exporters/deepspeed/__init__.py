"""Plans for DeepSpeed.

* `config`: a plan as a DeepSpeed configuration
"""
