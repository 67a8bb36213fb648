"""Results as data frames: one row for each run, and one for each cell of a table or
figure.
"""
