"""Models and tokenizers: build, load, check, save; and weight blobs as safetensors files.

For trainers, engines and data sources. Reads local folders only: never asks a hub, never unpickles.
"""
