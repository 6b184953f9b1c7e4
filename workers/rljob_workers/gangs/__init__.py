"""What the ranks of one gang do together, whatever their role: meet, share claims, wait for the same weights."""
