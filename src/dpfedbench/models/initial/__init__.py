"""Starts of training other than random weights, one file each, found by their folder."""
