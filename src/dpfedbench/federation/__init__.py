"""The federation's one loop and its parts: participation, client update, server update,
checkpoints.
"""
