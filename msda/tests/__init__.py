"""Tests of the operator: its arguments, its plans, its code generation, and its results on a few small calls."""
