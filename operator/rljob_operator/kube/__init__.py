"""The API server: cache, watches, apply, Events, status, lease. Decides nothing; knows no `cluster` and no kopf."""
