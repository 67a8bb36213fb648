"""Reporting: tables and figures from finished runs."""
