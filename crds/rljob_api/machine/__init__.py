"""What is known of this machine and its processes: devices, driver, memory. No API."""
