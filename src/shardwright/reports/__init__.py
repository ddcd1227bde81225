"""Forms in which a person reads plans. They show what a plan holds; `html.report` alone asks
`search` for what a plan file lacks.

* `text/`: a terminal
* `html/`: pages
* `documents/`: JSON
* `svg/`: pictures
* `section`: what a report is made of
* `palette`: the colours of all charts
* `validation`: measured runs beside predictions, as text and JSON
* `accuracy`: a validation as a page of documentation
* `spot`: a simulation of spot machines, as text and JSON
* `words`: findings and assumptions in English
"""
