"""New plans at once, from the plan before."""
