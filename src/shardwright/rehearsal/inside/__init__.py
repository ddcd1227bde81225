"""Inside the process of a rehearsal, which imports PyTorch and executes a trainer's code.

* `entry`: the process, from question to answer
* `guard`: the device guard, compiled at first use, and what is refused
* `fake_device`: fake devices, groups and tensors around a runner: `torch.cuda` without a GPU, and its operators
* `real_device`: the same rank on a GPU that is there, whose allocator is asked
* `meter`: blocks of memory, FLOPs and messages, and what they come to
* `own_runtime`: a rank of `shardwright train`
* `transformers_fsdp`: a rank of transformers: on one GPU, in copies, or under FSDP2
* `trl_losses`: the losses of TRL there
* `megatron_core`: a rank of Megatron-Core
* `fused_modules`: what stands in for Transformer Engine there
* `torchtitan_trainer`: a rank of torchtitan
"""
