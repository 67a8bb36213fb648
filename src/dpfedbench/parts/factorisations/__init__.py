"""Further factorisations, one file each. `dpsum.factorisations` has its own."""
