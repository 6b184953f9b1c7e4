"""What the files of a model say without building it: config.json and the heads of safetensors. No API, no torch."""
