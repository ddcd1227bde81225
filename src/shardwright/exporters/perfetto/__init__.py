"""Traces for Perfetto and chrome://tracing.

* `trace`: a predicted iteration, and a measured one beside it
* `measured`: what the ranks of a run did in a step
* `format`: events of the trace format
"""
