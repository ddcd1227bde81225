"""Why a run is slow: what it should take beside what it takes, the causes of the difference, and what mends each.

Start reading at `causes`: one function and one row for each cause that is known.

* `case`: all that is known of a run, in one value
* `terms`: expected beside measured, term by term
* `pricing`: the plan with one thing changed, by the cost model
* `causes`: the table of causes
* `signs`: lines of logs that tell a cause by themselves
* `padding`: how many tokens of a file are padding
* `memory`: what fills a GPU, from a message or a snapshot, beside the account
* `diagnose`: from a case to a diagnosis
* `words`: causes in English, with the flags of the trainers
* `text`: a diagnosis on a terminal
* `document`: a diagnosis as JSON
"""
