"""Tests of `ci` itself."""
