"""Schedules of a learning rate over the steps, one file each."""
