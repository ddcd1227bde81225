"""The integer program over compositions.

* `program`: the program
* `relaxation`: its linear relaxation
* `column_pool`: columns added as prices ask for them
* `answer`: solved, infeasible or open
* `regions`: least time of a region, and its parts
"""
