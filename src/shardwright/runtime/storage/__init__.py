"""What outlives a process: checkpoints by pieces of state, files of weights, and training data.

* `checkpoint`: checkpoints that any plan can read
* `manifest`: where every piece of a step lies, with its hash
* `piece_files`: files of pieces
* `model_hash`: the hash of a model
* `steps`: the checkpoints in a folder
* `version_1`: checkpoints of version 1
* `tensor_files`: safetensors files
* `exchange`: checkpoints to and from safetensors and torch.distributed.checkpoint
* `weights`: Hugging Face weights
* `adapter_files`: adapters as PEFT keeps them
* `megatron_weights`: weights as Megatron-LM keeps them
* `weight_files`: which files those are in
* `data`: token files
* `remote`: files behind a URL
* `mixture`: samples of one or several token files
* `fingerprint`: which data they are
"""
