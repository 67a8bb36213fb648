"""Audits of any function that releases a noisy sum of contributions."""
