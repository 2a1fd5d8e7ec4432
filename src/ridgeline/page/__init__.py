"""The page: what it is made of, and how it becomes what a server sends or one file that opens from disk."""
