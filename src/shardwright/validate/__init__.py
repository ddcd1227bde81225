"""Predicted against measured: published runs as plans, errors by group, the nearest evidence."""
