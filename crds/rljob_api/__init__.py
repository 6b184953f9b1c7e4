"""The RLJob API: the only place where fields of the manifest, of its status and of the wire are defined.

Anyone may import this package; it imports nothing of ours and no heavy library.
"""
