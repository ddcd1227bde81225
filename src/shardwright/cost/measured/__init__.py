"""A machine profile in place of the datasheet.

* `machine`: an efficiency model corrected by it
* `operators`: its operators
* `links`: its collectives
* `curve`: the monotone correction
* `summary`: the profile in a few figures
"""
