"""The cloud side. `client.py` speaks to any OpenAI-compatible endpoint and needs no torch."""
