"""Results as JSON documents.

* `findings`: a finding as its kind, its figures and its words
* `earlier`: documents of earlier versions
* `ranking`: rankings and evaluations
* `shop`: a search over offers
* `schemas`: JSON schemas of all; `data/documents.yaml` has what commands print
"""
