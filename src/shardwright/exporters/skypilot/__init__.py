"""SkyPilot tasks and job groups.

* `task`: a plan as YAML, with the files that it runs
"""
