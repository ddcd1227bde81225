"""A machine profile in place of the datasheet.

* `machine`: an efficiency model corrected by it, family by family
* `operators`: its operators
* `links`: its collectives
* `summary`: the profile in a few figures
"""
