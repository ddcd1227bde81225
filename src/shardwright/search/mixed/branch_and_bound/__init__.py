"""Branch and bound over settings, numbers of replicas and types in use.

* `tree`: the one loop, best bound first
* `fastest`: the search by time, over tensor-parallel degrees too
* `run`: what it is asked, how far it has got, and when it ends, in steps counted
* `scouting`: plans made before and after the tree
"""
