"""Forms in which a person reads plans. Nothing here plans or prices: it shows what a plan holds.

* `text/`: a terminal
* `html/`: pages
* `documents/`: JSON
* `svg/`: pictures
* `pages/`: pages of documentation
* `words`: findings in English
"""
