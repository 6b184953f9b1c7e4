"""A job as commands see it: planned, on a cluster, through its coordinator, and in the files of its run."""
