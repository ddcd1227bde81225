"""The plan, the one result: what it is (`plan`), when it is legal (`check`), how it is written to a file (`document`),
and what a search returns (`ranking`). It knows the descriptions of `spec` and nothing of how a plan is found or priced.
"""
