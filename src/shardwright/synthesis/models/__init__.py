"""Graphs of well-known models, built without tracing: one training step, forward and backward, of given dimensions."""
