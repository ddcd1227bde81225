"""Fits what ships with the package: operator efficiencies and the overheads of frameworks, from measurements.

A maintainer's tool, in no wheel: `python -m tools.refit` in a checkout.
"""
