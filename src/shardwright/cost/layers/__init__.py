"""Time, bytes and parameters of every layer on one GPU, for every way to shard it.

* `table`: predicted from operators
* `source`: where it is from; predicted layers as a source
* `measured`: a source made from a user's own layer times
"""
