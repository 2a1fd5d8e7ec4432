"""Images, video and speech: what is not text alone."""
