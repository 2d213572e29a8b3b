"""What every batch worker does: a JSON job a line on stdin, a JSON result a line on stdout, until stdin ends.

A job is `{"prompts": [text, …], "max_tokens": n}`: all prompts at once, greedy, exactly n tokens each. The
result is `{"seconds": …}`. Needs nothing, so that it runs in any peer's venv.
"""

import json
import os
import sys
import time
from collections.abc import Callable


def serve(generate: Callable[[list[str], int], None]) -> None:
    # What libraries print would break the protocol.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate(["Hello there."], 2)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        generate(job["prompts"], job["max_tokens"])
        print(json.dumps({"seconds": time.perf_counter() - started}), file=answers, flush=True)
