"""Further noises, one file each. `dpsum.noise`, `dpsum.correlated_noise` and
`dpsum.skellam_noise` have their own.
"""
