"""What the guide is made of: its numbers, which the ledger gives, and its questions."""
