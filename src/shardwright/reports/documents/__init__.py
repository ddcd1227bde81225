"""Results as JSON documents.

* `ranking`: rankings and evaluations
* `shop`: a search over offers
* `validation`: predicted against measured
"""
