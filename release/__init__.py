"""Makes a release: what a tag of this repository gives its users, the same bytes wherever and however often it is made.

`scripts/release` runs it, for a person as for CI. Nothing of it is in the wheel, and nothing else imports it.
"""
