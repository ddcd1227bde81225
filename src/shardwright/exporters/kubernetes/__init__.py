"""Kubernetes JobSets.

* `jobset`: a plan as a JobSet
"""
