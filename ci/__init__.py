"""What runs around the harness: replay, fuzzing, mutants, code generation checks, benchmarks, reports."""

import time

# By the monotonic clock; importing the rest takes seconds, which count for a command that has a time.
STARTED = time.monotonic()
