"""Vocabularies: the words that a language model knows, one file a way to choose them,
found by place.
"""
