"""Fits what ships with the package: operator efficiencies and the overheads of frameworks, from measurements."""
