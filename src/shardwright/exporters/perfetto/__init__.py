"""Traces for Perfetto and chrome://tracing.

* `trace`: one predicted iteration
"""
