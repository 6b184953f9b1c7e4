"""The coordinator: a small HTTP service that knows which ranks live, which weights exist and what the job has reached.

A process of its own (`python -m rljob_workers.dcs.coordinator`). `app` is the HTTP side, `serial_executor` the one
thread in which everything happens, `coordinator` the composition; epochs, pods, weights, progress are rooms over one
store (`records`). It never decides about restarts: it reports what it knows, and carries out orders.
"""
