"""What training frameworks and GPU architectures add to operators and links.

* `overheads`: their parameters, from `cost/data`
* `widths`: bytes of an element of each kind of traffic and buffer
"""
