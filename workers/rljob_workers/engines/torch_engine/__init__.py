"""A small inference server for CPU and tests that speaks SGLang's HTTP dialect.

`server.serve` is its only entry; roles reach it through `client` like any other engine. Weights come by
`/update_weights_from_disk` only: a started server holds none and says so.
"""
