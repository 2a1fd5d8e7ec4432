"""The output formats of a ledger: a document, JSON and CSV, a trace file and the roofline."""
