"""Connections: deadlines, who may ask, bodies, health, and streams of events on their way to a client."""
