"""The routes of OpenAI's API: they convert request fields into engine requests, and engine events into responses."""
