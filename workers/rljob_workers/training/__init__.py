"""The actor role: trains on rows, publishes versions, reports steps, saves."""
