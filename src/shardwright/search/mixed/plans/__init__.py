"""From solutions to plans: layer splits, micro-batches, and exact costs."""
