"""Noise: what is added to a private sum, and how its multiplier moves, one file
each.
"""
