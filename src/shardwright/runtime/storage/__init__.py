"""What outlives a process: checkpoints by pieces of state, files of weights, and training data.

* `checkpoint`: checkpoints that any plan can read
* `manifest`: where every piece of a step lies, with its hash, the files of pieces, and the checkpoints in a folder, of
  any version
* `exchange`: checkpoints to and from safetensors and torch.distributed.checkpoint
* `weights`: weights and adapters in files of Hugging Face and PEFT, and weights as Megatron-LM keeps them
* `weight_files`: which files those are in
* `data`: token files, those behind a URL too
* `mixture`: samples of one or several token files
"""
