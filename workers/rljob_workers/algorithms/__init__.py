"""Pure torch functions of reinforcement learning, one policy a file: formula, shapes and source in the docstring.

Called by trainers and by the advantages role. Imports only torch; knows neither the spec nor where tensors come from.
"""
