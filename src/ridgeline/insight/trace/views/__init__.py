"""What a ledger looks like: a document for people, JSON and CSV for programs, a trace file, the roofline."""
