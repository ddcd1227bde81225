"""Plans from what people run today: launch scripts and configurations of trainers. Nothing of them is executed.

* `launch`: a plan from a file that starts training
* `configurations`: from configurations of trainers: what is asked, and the plan of settings
* `launches`: starts of training among the commands of a script
* `fields`: fields that are read, and what they make
* `trainers`: DeepSpeed, Accelerate and Trainers of Hugging Face
* `adapters`: adapters, by the names that PEFT and bitsandbytes have for them
* `choices`: how the loss is computed, where activations are, which weights have copies
* `tasks`: what tasks and jobs of YAML files run
* `torchtitan`: torchtitan
* `torchtune`: torchtune's full fine-tuning and LoRA
* `foundry`: LLM Foundry, which Composer runs
* `recipes`: recipes of NeMo 2 and Megatron-Bridge, by name
* `paths`: fields by path, filled in and changed by a command line
* `settings`: fields of configurations as arguments, and what each key of a trainer's configuration means for a plan
* `python_values`: what a Python configuration sets
* `shell/`: the words that a launch script passes
* `megatron/`: Megatron-LM, and what is made of it
"""
