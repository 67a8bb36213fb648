"""Factorisations: which encoder makes one round's noise cancel part of earlier rounds',
one file each.
"""
