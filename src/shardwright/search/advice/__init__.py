"""What to tell a user whose problem has no plan.

* `infeasible`: why, and the smallest changes that give one
* `remedies`: single changes, each tried
* `nearby`: other batches and numbers of machines that pay
"""
