"""Hugging Face causal language models, trained sharded (FSDP2): the backend `Fsdp`.

`trainers` builds from here; nobody else imports it. transformers' model classes take seconds to import, so that only
what builds a model imports them.
"""
