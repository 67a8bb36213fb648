"""Initial weights other than random ones, one file each, found by their folder."""
