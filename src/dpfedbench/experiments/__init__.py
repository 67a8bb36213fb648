"""Expansion of the configuration to the runs that it needs."""
