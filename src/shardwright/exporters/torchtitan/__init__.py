"""Plans for torchtitan 0.3.

* `config`: a plan as a configuration in Python
* `models`: which model of its registry a model is
* `limits`: what torchtitan cannot run
"""
