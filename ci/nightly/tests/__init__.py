"""Tests of the nightly fuzzing."""
