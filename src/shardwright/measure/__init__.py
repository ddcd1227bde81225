"""Measures the machine at hand: operators and collectives, for planning on its own figures.

* `run`: all measurements
* `device`: devices and versions, seconds of repeated calls, and the description of a device that the catalogue lacks
* `operators`: what is measured, and products, attention and what only moves memory as calls
* `collectives`: collectives under torchrun
"""
