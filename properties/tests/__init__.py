"""Tests of `properties` itself."""
