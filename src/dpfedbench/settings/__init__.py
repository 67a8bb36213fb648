"""Settings of a run, read from plain values and checked; see `part`, `merge` and
`run`.
"""
