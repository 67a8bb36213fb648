"""Settings: what a run is made of, read from plain values and checked; see `part`,
`layers` and `run`.
"""
