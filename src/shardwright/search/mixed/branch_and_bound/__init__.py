"""Branch and bound over settings, numbers of replicas and types in use.

* `tree`: the one loop, best bound first
* `fastest`: the search by time
* `run`: what it is asked, and how far it has got
* `scouting`: plans made before and after the tree
* `incumbents`: the best plans found so far
* `degrees`: over tensor-parallel degrees
* `effort`: when it ends, in steps counted
"""
