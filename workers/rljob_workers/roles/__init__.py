"""The roles: one main loop per role around a stage. A loop waits, beats and hands over; a stage computes.

Roles know the queue, the session, an engine or a trainer by their public face, never by backend.
"""
