"""ReMax: a sample is measured against what the same policy answers greedily."""

import torch


def remax(rewards: torch.Tensor, valid: torch.Tensor, baselines: torch.Tensor) -> torch.Tensor:
    """A_i = r_i - b_i, where b_i is the reward of a greedy answer (temperature 0) to the prompt of sample i.

    The baseline knows nothing of what was drawn, so that it leaves the gradient's mean as it is, and there need be no
    other sample of the prompt. It is never lessened by the KL that r_i may be: its tokens are not trained on.
    Shapes: all [rows], `valid` bool -> [rows]. An invalid sample, whose reward may be anything, gets 0.
    Source: Li et al. 2023, ReMax, arXiv:2310.10505, algorithm 1. Where KL is in the rewards, verl's has this number at
    the first token, and at a later one leaves out the KL of the tokens before it.
    """
    return torch.where(valid, rewards - baselines, 0.0)
