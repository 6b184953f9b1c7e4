"""Listening ports: what bounds their connections, and pages for probes and scrapers.

`connections` and `pages` are pure, for servers of any loop; `page_server` serves pages from an event loop of asyncio.
"""
