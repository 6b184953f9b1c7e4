"""Group-relative advantages: a sample is measured against the other samples of its prompt."""

import torch


def group_normalised(rewards: torch.Tensor, valid: torch.Tensor, *, epsilon: float = 1e-6) -> torch.Tensor:
    """GRPO advantages of whole groups.

    Formula: A_gi = (r_gi - mean_g) / (std_g + epsilon), with the unbiased standard deviation (n - 1), both over the
    n valid samples of the group: the others are not there, and get 0. A group whose valid rewards are all equal (one of
    fewer than two has no others) gets exactly 0: it teaches nothing.
    Shapes: rewards [groups, samples], valid [groups, samples] bool -> [groups, samples], in the type of `rewards` where
    that is one of real numbers, else float32; samples >= 2. The reward of an invalid sample may be anything.
    Source: Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, section 4.1.2.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards: shape {tuple(rewards.shape)}, but group advantages need [groups, samples] with 2 or more "
            "samples of each prompt. Set rollout.samplesPerPrompt to at least 2."
        )
    rewards = rewards if rewards.is_floating_point() else rewards.float()
    rewards = torch.where(valid, rewards, 0.0)
    count = valid.sum(1, keepdim=True).to(rewards.dtype)
    centred = torch.where(valid, rewards - rewards.sum(1, keepdim=True) / count.clamp(min=1.0), 0.0)
    deviation = (centred.square().sum(1, keepdim=True) / (count - 1.0).clamp(min=1.0)).sqrt()
    # By comparison, since the mean of equal numbers may differ from them by an ulp.
    lowest = torch.where(valid, rewards, torch.inf).amin(1, keepdim=True)
    highest = torch.where(valid, rewards, -torch.inf).amax(1, keepdim=True)
    return (centred / (deviation + epsilon)).masked_fill(lowest >= highest, 0.0)
