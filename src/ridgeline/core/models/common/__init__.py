"""The parts that model families share: config readers, blocks, decoders, denoisers, and the contracts of models."""
