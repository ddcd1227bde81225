"""The search over clusters of several GPU types: replicas of different depth, types and micro-batch counts."""
