"""What each experiment says: its tables, its picture and its words."""
