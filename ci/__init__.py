"""What runs around the harness: replay, fuzzing, mutants, code generation checks, benchmarks, reports."""
