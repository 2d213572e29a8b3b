"""llama-cpp-python's `Llama`, one chat at a time, in its own venv: MODEL CTX THREADS; a JSON list of prompts
in, seconds and tokens out.
"""

import json
import resource
import sys
import time

from llama_cpp import Llama

model, ctx, threads = sys.argv[1], *map(int, sys.argv[2:4])
llama = Llama(model, n_ctx=ctx, n_threads=threads, n_threads_batch=threads, verbose=False)
llama.create_completion("warm up", max_tokens=4)
eos = llama.token_eos()
for line in sys.stdin:
    job = json.loads(line)
    began, tokens = time.perf_counter(), 0
    for messages in job["chats"]:
        answer = llama.create_chat_completion(
            messages, max_tokens=job["max_tokens"], temperature=0.0, logit_bias={eos: -100.0}
        )
        tokens += answer["usage"]["completion_tokens"]
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "tokens": tokens,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        ),
        flush=True,
    )
