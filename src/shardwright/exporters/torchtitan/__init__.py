"""Plans for torchtitan 0.3.

* `config`: a plan as a configuration in Python, and what torchtitan cannot run
* `models`: which model of its registry a model is
"""
