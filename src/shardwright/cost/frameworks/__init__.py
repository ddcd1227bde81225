"""What training frameworks and GPU architectures add to operators and links.

* `overheads`: what they add to operators and links
* `optimizer`: what an optimizer keeps and moves
* `widths`: bytes of an element of each kind of traffic and buffer
"""
