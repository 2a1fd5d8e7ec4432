"""What every package may use: this machine, files, messages, times, and output as data."""
