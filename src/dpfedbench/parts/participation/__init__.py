"""Further participations, one file each. `dpsum.participation` has its own."""
