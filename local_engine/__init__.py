"""The edge: GGUF models through llama.cpp, many sequences at once, and embedders."""
