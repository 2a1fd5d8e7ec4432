"""Image and video generation behind HTTP."""
