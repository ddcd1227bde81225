"""Time, bytes and parameters of every layer on one GPU, for every way to shard it.

* `table`: predicted from operators
* `seconds`: seconds of one layer, with the communication that it cannot hide
* `source`: where it is from; predicted layers as a source
* `measured`: a source made from a user's own layer times
"""
