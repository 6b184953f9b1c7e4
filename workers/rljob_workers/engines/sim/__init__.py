"""The simulated engine: a server that speaks the torch engine's dialect, draws by hashing and spends time instead.

Everything but the tokens is that engine's own code: HTTP, pauses, updates, spans, aborts. Its row of the registry
is in `engines.torch_engine.torch_backend`.
"""
