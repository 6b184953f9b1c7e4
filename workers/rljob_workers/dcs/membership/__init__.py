"""How ranks and launchers talk to the coordinator: requests, a rank's session, context and counters."""
