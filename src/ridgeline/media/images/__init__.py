"""Images in language models: image files as input of a vision encoder, and generated image tokens as output.

`preprocess.py` opens an untrusted file and cuts the image into patches, `prompt.py` inserts its placeholder tokens into
a prompt. `image_generator.py` does the reverse: an engine generates image tokens, which are decoded to pixels.
"""
