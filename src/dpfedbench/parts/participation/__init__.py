"""Further participations, one file each. Those of `dpsum.participation` need none."""
