"""The backend `Megatron`: decoders of megatron-core, cut over ranks along every axis that it knows.

A model of the hub is described in `sizes`, built in `building` and named in `stored_names`, which loading, export and
saved state stand on. Used by the factories of `rljob_workers.trainers` through `megatron_backend`.
"""
