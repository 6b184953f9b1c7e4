"""TransferQueue: columnar, streaming hand-over of samples between the roles. See `docs/protocols/queue.md`."""
