"""Readers: one for each thing that a user describes.

* `model`: a preset, a Hugging Face config or a YAML of dimensions
* `presets`: models known by name
* `huggingface`: `config.json`
* `huggingface_config`: the way back, a model's `config.json`
* `config_fields`: its fields under their many spellings, which are read, and which say nothing of the forward pass
* `huggingface_layers`: its layers
* `towers`: vision towers of multimodal configs
* `sound_towers`: their towers of sound
* `preprocessor`: how images are cut, as the file beside a config says
* `gemma`: layers of Gemma 4 and Gemma 3n
* `mllama`: layers and tower of Llama 3.2 Vision
* `zamba`: layers of Zamba and Zamba2, which share blocks
* `encoder_decoders`: T5, BART, Whisper and their kin
* `block_patterns`: which block every layer is
* `mixers`: mixers of tokens that are no softmax attention
* `families`: what a family has that the config does not say, and which are refused
* `forward_pass`: what a config tells of the forward pass beside sizes
* `model_yaml`: a YAML of dimensions
* `cluster`: a cluster file or short form
* `pools`: a group of machines
* `mixed_machines`: machines with GPUs of several types
* `pool_defaults`: what the catalogue adds to a group of machines
* `sites`: links between sites
* `custom_gpu`: a GPU that the catalogue lacks
* `job`: batch, tokens, objective
* `offers`: offers to rent
* `layer_profile`: layer times of one's own, and what planning needs beyond them
* `machine_profile`: what `shardwright profile` measured
"""
