"""Lower bounds on epsilon from scores and coins, and scores of an ideal attacker."""
