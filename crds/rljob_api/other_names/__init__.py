"""Reads rows of files with columns: Parquet, and folders of Arrow files. Anyone may import it; it imports no spec."""
