"""The parts that model families share: the reading of config.json, blocks, whole decoders and denoisers, contracts."""
