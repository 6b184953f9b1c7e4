"""Devices, driver, memory and processes of this machine. No API."""
