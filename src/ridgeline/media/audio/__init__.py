"""Audio as model input: a file becomes mono samples at 16 kHz, and samples become log-mel features."""
