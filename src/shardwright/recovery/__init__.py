"""Recovery without PyTorch: who is there, which shards survive where, and what moves from where to where.

* `transfer`: which machine reads which shard from where
* `transfer_program`: the linear program behind it
"""
