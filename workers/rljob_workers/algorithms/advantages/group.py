"""Group-relative advantages: a sample is measured against the other samples of its prompt.

All take rewards [groups, samples] and valid [groups, samples] bool, with 2 or more samples, and give [groups, samples],
in the type of `rewards` where that is one of real numbers, else float32. The reward of an invalid sample may be
anything: the sample is not there for the others, and gets 0. A group whose valid rewards are all equal (one of fewer
than two has no others) gets exactly 0: it teaches nothing.
"""

import torch


def group_normalised(rewards: torch.Tensor, valid: torch.Tensor, *, epsilon: float = 1e-6) -> torch.Tensor:
    """GRPO: A_gi = (r_gi - mean_g) / (std_g + epsilon), with the unbiased standard deviation (n - 1) of valid samples.

    Source: Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, section 4.1.2.
    """
    centred, count = _centred(rewards, valid)
    deviation = (centred.square().sum(1, keepdim=True) / (count - 1.0).clamp(min=1.0)).sqrt()
    return centred / (deviation + epsilon)


def group_centred(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Dr. GRPO: A_gi = r_gi - mean_g.

    Without the deviation a prompt that is nearly always, or hardly ever, solved weighs no more than others. The paper
    also divides the loss by a constant and not by lengths: lossAggregation Constant.
    Source: Liu et al. 2025, arXiv:2503.20783, section 3.
    """
    return _centred(rewards, valid)[0]


def leave_one_out(rewards: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """RLOO: A_gi = r_gi - mean of the other valid samples = n / (n - 1) (r_gi - mean_g): a baseline without bias.

    Source: Ahmadian et al. 2024, arXiv:2402.14740, section 3.3; Kool et al. 2019, "Buy 4 REINFORCE samples, get a
    baseline for free".
    """
    centred, count = _centred(rewards, valid)
    return centred * count / (count - 1.0).clamp(min=1.0)


def _centred(rewards: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards less the mean of their group's valid ones, [groups, samples], and how many these are, [groups, 1]."""
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards: shape {tuple(rewards.shape)}, but group advantages need [groups, samples] with 2 or more "
            "samples of each prompt. Set rollout.samplesPerPrompt to at least 2."
        )
    rewards = rewards if rewards.is_floating_point() else rewards.float()
    rewards = torch.where(valid, rewards, 0.0)
    count = valid.sum(1, keepdim=True).to(rewards.dtype)
    centred = torch.where(valid, rewards - rewards.sum(1, keepdim=True) / count.clamp(min=1.0), 0.0)
    # By comparison, since the mean of equal numbers may differ from them by an ulp.
    lowest = torch.where(valid, rewards, torch.inf).amin(1, keepdim=True)
    highest = torch.where(valid, rewards, -torch.inf).amax(1, keepdim=True)
    return centred.masked_fill(lowest >= highest, 0.0), count
