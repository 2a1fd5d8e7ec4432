"""The HTTP layer: deadlines, access control, request bodies, health, the web page, and event streams."""
