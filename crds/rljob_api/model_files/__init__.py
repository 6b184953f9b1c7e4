"""Reads the files of a model without building it: config.json and the heads of safetensors. No API, no torch."""
