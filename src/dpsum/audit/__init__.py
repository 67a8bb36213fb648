"""Lower bounds on epsilon from scores and coins, and the scores of an ideal
attacker.
"""
