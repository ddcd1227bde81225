"""Plans and what belongs to them on a terminal, some of it as a document too.

* `first_screen`: a search in fifteen lines
* `terminal`: a search in full
* `plans`: plans as a table and in full, and what interruptions do to a run
* `evaluation`: a user's own plan, and the way from it to better ones
* `explain`: how two plans or kinds of plans differ, and what speaks against a faster one
* `question`: what was asked, in a line each
* `strategy`: a plan setting by setting, and in a few words
* `outcome`: what a plan is predicted to come to, in a few words
* `mixed`: a plan whose replicas differ, those of uneven FSDP too
* `programs`: an SPMD program beside the plans
* `shop`: offers, in full and in a few lines
* `measured`: a machine profile
* `site`: a calibration on own runs, and what it did to a prediction
* `sizing`: ways to train and the memory of each
* `catalogue`: GPUs, models, prices, and which trainer runs what
* `layout`: tables, bars, wrapped lines
"""
