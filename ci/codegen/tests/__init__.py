"""Tests of the codegen command."""
