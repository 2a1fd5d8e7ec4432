"""Pictures and language models: a file becomes the patches that a tower reads, and where they stand in a prompt; image
tokens that an engine writes become a picture.

`preprocess.py` opens a file that a stranger may have made and makes patches of it, `prompt.py` their places.
`image_generator.py` goes the other way: it has an engine write the tokens of pictures, and makes pixels of them.
"""
