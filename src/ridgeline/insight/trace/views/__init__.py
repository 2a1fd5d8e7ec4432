"""The output formats of a trace (the ledger of its ops): a document, JSON and CSV, a trace file and the roofline."""
