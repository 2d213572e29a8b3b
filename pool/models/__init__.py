"""Llama-family decoders in torch: what a model is, its weights, and its forward pass over paged memory."""
