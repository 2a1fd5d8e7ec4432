"""Pictures over HTTP: pipelines that are stepped in turns, the service before them, their routes."""
