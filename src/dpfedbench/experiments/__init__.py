"""From the configuration to the runs that it asks for."""
