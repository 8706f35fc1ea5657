"""Tests of the report: what is in it, what survives odd input, and how a browser shows it."""
