"""Lower bounds on epsilon, from the releases of the code that ran."""
