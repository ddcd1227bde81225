"""Plans in the words of the tools that people run: one folder a target.

* `targets`: the library call, and the list of targets
* `nearest`: the nearest plan that a target can run
* `limit`: what a target cannot run
* `exported`: what an exporter gives
* `runner`: what machines start, for targets that only bring machines together
* `trainer_arguments`: what a Hugging Face Trainer is told
* `peft`: adapters and quantised weights, as PEFT and bitsandbytes are told of them
* `trainer_options`: options of the trainer that a plan says
* `recipes`: a way to train that fits, as the recipe of a trainer
* `support/`: who runs what
* `yaml_text`: YAML as a person would write it
* `megatron/`: Megatron-LM
* `bridge/`: Megatron-Bridge
* `torchtitan/`: torchtitan
* `accelerate/`: Hugging Face Accelerate
* `deepspeed/`: DeepSpeed
* `skypilot/`: SkyPilot tasks and job groups
* `kubernetes/`: Kubernetes JobSets
* `perfetto/`: traces
"""
