"""Parts that methods are made of, one file each, found by their folder."""
