"""What workers write down about themselves: a timeline of spans and the log of trained samples."""
