"""openvino-genai with continuous batching on a GGUF file. Runs in its own venv: MODEL THREADS."""

import sys

import openvino_genai
from worker import batch, serve

model, threads = sys.argv[1], int(sys.argv[2])
scheduler = openvino_genai.SchedulerConfig()
scheduler.cache_size = 1
scheduler.enable_prefix_caching = True
pipeline = openvino_genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)


def generate(prompts: list[str], max_tokens: int) -> None:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = max_tokens
    config.do_sample, config.ignore_eos, config.apply_chat_template = False, True, False
    pipeline.generate(prompts, config)


serve(prompts=batch(generate))
