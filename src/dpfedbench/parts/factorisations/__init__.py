"""Further factorisations, one file each. Those of `dpsum.factorisations` need none."""
