"""Time, bytes and parameters of every layer on one GPU, for every way to shard it.

* `table`: predicted from operators
* `measured`: from a user's own layer times
"""
