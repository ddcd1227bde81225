"""What is read and written.

* `checkpoint`: checkpoints that any plan can read
* `tensor_files`: safetensors files
* `weights`: Hugging Face weights
* `data`: training data
"""
