"""Client updates: what a client computes from its own data and sends, one file each."""
