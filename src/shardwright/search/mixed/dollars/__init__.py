"""The search by dollars: numbers of machines, and which of them a plan may be worth its money on."""
