"""Pages of documentation.

* `accuracy`: `docs/accuracy.md`
"""
