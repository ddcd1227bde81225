"""What to rent: GPU types and counts are variables, and the answer is the Pareto front of time, dollars and risk."""
