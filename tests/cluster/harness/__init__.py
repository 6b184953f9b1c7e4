"""What tests on a cluster are written with: kubectl, the operator as a process, processes of pods, folders of claims.

For tests of this folder only. Nothing here knows what a job should do; every wait has a deadline that says what for.
"""
