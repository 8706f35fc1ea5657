"""Tests of `reference` itself."""
