"""Tensors in the forms in which rows travel. Knows no queue, no trainer and no job."""
