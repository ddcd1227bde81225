"""What to tell beside the plan, or where there is none.

* `infeasible`: why, and the smallest changes that give one
* `nearby`: other batches and numbers of machines that pay
* `fewer`: the same run on fewer of the machines
"""
