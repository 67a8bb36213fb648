"""Further clipping rules, one file each. `dpsum.clipping` has its own."""
