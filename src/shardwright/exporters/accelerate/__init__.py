"""Plans for Hugging Face Accelerate.

* `config`: a plan as an Accelerate configuration (FSDP2)
"""
