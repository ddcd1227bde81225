"""Inside the process of a rehearsal, which imports PyTorch and executes a trainer's code.

* `entry`: the process, from question to answer
* `refusal`: what is refused
* `guard`: the device guard, compiled at first use
* `stage`: fake devices, groups and tensors around a runner
* `fake_device`: `torch.cuda` without a GPU
* `kernels`: the operators that a GPU would take
* `meter`: blocks of memory, FLOPs and messages
* `peaks`: what they come to
* `own_runtime`: a rank of `shardwright train`
* `transformers_fsdp`: a rank of transformers under FSDP2
* `megatron_core`: a rank of Megatron-Core
"""
