"""What several test folders share: small random checkpoints, engines over token ids, the first difference."""
