"""OpenAI's interface: what a request's fields ask of the engine, and how its events become an answer."""
