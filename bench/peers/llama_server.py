"""The real C++ llama-server, from the `xllamacpp` wheel. Runs in its own venv: MODEL CTX PARALLEL THREADS;
prints its address, ends with stdin.
"""

import sys

import xllamacpp

model, ctx, parallel, threads = sys.argv[1], *map(int, sys.argv[2:5])
params = xllamacpp.CommonParams()
params.model.path = model
params.n_ctx = ctx
params.n_parallel = parallel
params.kv_unified = True
params.cpuparams.n_threads = threads
params.cpuparams_batch.n_threads = threads
params.hostnames = ["127.0.0.1"]
params.port = 0
params.sampling.seed = 1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
