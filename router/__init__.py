"""Where a request goes: constraints, quality, cost, latency. Holds no policy so far: the gateway has one candidate."""
