"""Plans in the words of the tools that people run: a module or a folder for each target.

* `targets`: the library call, and the list of targets
* `nearest`: the nearest plan that a target can run
* `exported`: what an exporter gives, or why it cannot
* `evaluation`: the line of a script that says how it is read back
* `support/`: who runs what
* `megatron/`: Megatron-LM
* `bridge`: Megatron-Bridge
* `torchtitan/`: torchtitan
* `accelerate`: Hugging Face Accelerate
* `deepspeed`: DeepSpeed
* `hugging_face`: what a `Trainer`, PEFT and bitsandbytes are told of a plan
* `recipes`: a way to train that fits, as the recipe of a trainer
* `runner`: what machines start, for targets that only bring machines together
* `skypilot`: SkyPilot tasks and job groups
* `kubernetes`: Kubernetes JobSets
* `perfetto`: traces
"""
