"""transformers' continuous batching, float32. Runs in its own venv: MODEL_FOLDER THREADS."""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig
from worker import batch, serve

folder, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval()
batching = ContinuousBatchingConfig(page_size=16, num_blocks=512, max_batch_tokens=512)


def generate(prompts: list[str], max_tokens: int) -> None:
    how = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1)
    ids = [tokenizer(prompt).input_ids for prompt in prompts]
    model.generate_batch(inputs=ids, generation_config=how, continuous_batching_config=batching)


serve(prompts=batch(generate))
