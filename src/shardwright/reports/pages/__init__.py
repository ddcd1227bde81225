"""Pages of documentation.

* `accuracy`: `docs/accuracy.md`
* `markdown`: tables
"""
