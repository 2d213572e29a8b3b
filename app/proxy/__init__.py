"""The HTTP door: OpenAI's and Anthropic's routes over the gateway, and what operators ask a server."""
