"""Further noises, one file each. Those of `dpsum.noise`, `dpsum.correlated_noise` and
`dpsum.skellam_noise` need none.
"""
