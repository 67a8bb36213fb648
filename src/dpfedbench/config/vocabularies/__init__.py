"""Vocabularies: choices of the words that a language model knows, one file each, found
by their folder.
"""
