"""Which response tokens the loss is over: those of rows that may be learnt from."""

import torch


def masks_of_rows(loss_masks: torch.Tensor, response_lengths: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The masks, with 0 at every token of a row that is not kept.

    Sums, counts and means that go by the result are those of a batch without these rows: see `aggregation`.
    Shapes: loss_masks [tokens] uint8, response_lengths [rows] int64, kept [rows] bool -> [tokens] uint8.
    """
    return loss_masks * kept.repeat_interleave(response_lengths)
