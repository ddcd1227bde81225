"""Rehearses a plan: one step of the trainer's own code at full size, on fake tensors, beside what the account says.

* `rehearse`: a plan, one rank of each kind, each in a process within limits of time and memory
* `trainers`: what can be rehearsed, and what a process is asked, in the words of each trainer
* `document`: the result beside what was predicted, and as data
* `text`: the result on a terminal
* `inside/`: what runs in that process

A rehearsal executes a trainer's code, which nothing else here does: always in a process of its own. What does not
belong here: what memory and time are predicted to be (`cost`).
"""
