"""Where training starts from other than from random weights, one file each, found by
their place.
"""
