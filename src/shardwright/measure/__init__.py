"""Measures the machine at hand: operators and collectives, for planning on its own figures.

* `run`: all measurements
* `shapes`: what is measured
* `device`: devices and versions
* `operators`: products, attention and what only moves memory, as calls
* `collectives`: collectives under torchrun
* `timing`: seconds of repeated calls
* `custom`: a device that the catalogue lacks
"""
