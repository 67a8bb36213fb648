"""Client updates, one file each: the computation of a client on its own data, and its
message.
"""
