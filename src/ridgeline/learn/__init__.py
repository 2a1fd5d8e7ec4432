"""How inference works: experiments, the guide, the web page."""
