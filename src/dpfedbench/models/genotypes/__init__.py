"""Sources of a network's cells, found by their folder."""
