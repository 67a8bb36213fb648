"""Server steps, one file each: the use that the server makes of a round's released
sum.
"""
