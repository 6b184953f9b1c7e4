"""Hugging Face causal language models, trained sharded (FSDP2): the backend `Fsdp`.

`trainers` builds from here; no other module imports it. transformers' model classes take seconds to import, so only
what builds a model imports them.
"""
