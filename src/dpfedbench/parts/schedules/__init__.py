"""Schedules: how the server's learning rate moves from step to step, one file each."""
