"""Why a run is slow: what it should take beside what it takes, the causes of the difference, and what mends each.

Start reading at `causes`: one function and one row for each cause that is known.

* `case`: all that is known of a run, in one value: figures, telling lines of logs, padding in its data
* `terms`: expected beside measured, term by term, and the plan with one thing changed
* `causes`: the table of causes
* `memory`: what fills a GPU, from a message or a snapshot, beside the account
* `diagnose`: from a case to a diagnosis
* `words`: causes in English, with the flags of the trainers
* `report`: a diagnosis on a terminal and as JSON
"""
