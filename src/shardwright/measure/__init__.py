"""Measures the machine at hand: operators and collectives, for planning on its own figures."""
