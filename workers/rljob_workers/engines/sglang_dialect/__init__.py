"""Client side of SGLang's HTTP dialect: drives the torch engine, and any server that speaks it.

Built by `engines.build_engine`. What a server offers is learnt from its model info, once per incarnation.
"""
