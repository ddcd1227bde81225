"""Plans and what belongs to them on a terminal.

* `first_screen`: a search in fifteen lines
* `terminal`: a search in full
* `plans`: plans as a table and in full
* `evaluation`: a user's own plan
* `ladder`: the way from a plan to better ones
* `explain`: how two plans differ
* `caution`: what hardly any published run has
* `question`: what was asked, in a line each
* `describe`: a plan in a few words
* `strategy`: a plan setting by setting
* `outcome`: what a plan is predicted to come to, in a few words
* `mixed`: a plan whose replicas differ
* `nearest`: the nearest plan that a target can run
* `shares`: rows and state of each GPU under uneven FSDP
* `kinds`: kinds of plans over several GPU types
* `programs`: an SPMD program beside the plans
* `shop`: offers
* `shop_screen`: offers on one screen
* `spot`: a simulation of spot machines
* `risk`: interruptions
* `validation`: measured runs
* `measured`: a machine profile
* `sizing`: ways to train and the memory of each
* `catalogue`: GPUs, models, prices
* `problems`: long lists of problems made short
* `layout`: tables, bars, wrapped lines
"""
