"""Sound as models take it: a file becomes samples of one channel at 16 kHz, samples become log-mel features."""
