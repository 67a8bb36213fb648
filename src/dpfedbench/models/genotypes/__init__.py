"""Where the cells of a network come from, one file each, found by their place."""
