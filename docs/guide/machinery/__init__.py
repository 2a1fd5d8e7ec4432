"""How the guide is built and checked: chapters taken apart, their blocks run, their words looked at, Sphinx's
extension."""
