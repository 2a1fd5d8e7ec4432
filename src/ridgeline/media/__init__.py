"""Images, video and speech: the inputs and outputs of models that are not only text."""
