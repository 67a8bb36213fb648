"""Sources of a network's cells, one file each, found by their folder."""
