"""Where a request goes. Holds no policy so far: the gateway has one candidate."""
