"""Rehearses a plan: one step of the trainer's own code at full size, on fake tensors, beside what the account says.

* `rehearse`: a plan, rank by rank
* `ranks`: one rank of each kind
* `trainers`: what can be rehearsed, and what a process is asked
* `hugging_face`: models in the words of transformers
* `process`: the process, within limits of time and memory
* `account`: what was predicted
* `document`: the result as data
* `text`: the result on a terminal
* `inside/`: what runs in that process

A rehearsal executes a trainer's code, which nothing else here does: always in a process of its own. What does not
belong here: what memory and time are predicted to be (`cost`).
"""
