"""Teaching material on inference: experiments and exercises, the guide, and the web page."""
