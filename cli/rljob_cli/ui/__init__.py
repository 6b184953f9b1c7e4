"""Text for people: tables and lines made from typed values. Reads and decides nothing."""
