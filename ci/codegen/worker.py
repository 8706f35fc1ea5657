"""A process that compiles: jobs come in on standard input and answers go out on standard output, a line of JSON each.

Not a fork and not `multiprocessing`: Triton decides as it is imported whether its kernels can be compiled, so the
environment must be right from the start, and what the caller has imported is of no use here.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import asdict
from typing import Any


def main() -> None:
    """Answer jobs until there are no more."""
    # What a compiler prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from .build import Failed, Unavailable, build  # noqa: PLC0415 - prints and takes seconds
    from .catalogue import entries  # noqa: PLC0415

    # What has been imported stays; looking through it again and again takes a tenth of the time.
    gc.freeze()
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        job = json.loads(line)
        answer: dict[str, Any]
        try:
            built = build(job["architecture"], [entries()[name] for name in job["names"]])
            answer = {"results": [{"failed": one.reason} if isinstance(one, Failed) else asdict(one) for one in built]}
        except Unavailable as error:
            answer = {"unavailable": str(error)}
        except Exception as error:
            # Not a compiler's: those are answers. What else goes wrong says nothing about a kernel.
            answer = {"unavailable": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
