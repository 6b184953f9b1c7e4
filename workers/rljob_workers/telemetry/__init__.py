"""Workers record themselves: a timeline of spans and the log of trained samples."""
