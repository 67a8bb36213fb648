"""Tests of the data frames of results."""
