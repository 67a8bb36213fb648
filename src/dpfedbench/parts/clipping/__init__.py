"""Further clipping rules, one file each. Those of `dpsum.clipping` need none."""
