"""What training frameworks and GPU architectures add to operators and links.

* `overheads`: their parameters, from `cost/data`
"""
