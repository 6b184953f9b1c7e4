"""Group-relative advantages: a sample is measured against the other samples of its prompt."""

import torch


def group_normalised(rewards: torch.Tensor, *, epsilon: float = 1e-6) -> torch.Tensor:
    """GRPO advantages of whole groups.

    Formula: A_gi = (r_gi - mean_g) / (std_g + epsilon), with the unbiased standard deviation (n - 1). A group whose
    rewards are all equal gets exactly 0: it teaches nothing.
    Shapes: rewards [groups, samples] -> [groups, samples], float32; samples >= 2.
    Source: Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, section 4.1.2.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards: shape {tuple(rewards.shape)}, but group advantages need [groups, samples] with 2 or more "
            "samples of each prompt. Set rollout.samplesPerPrompt to at least 2."
        )
    rewards = rewards.float()
    centred = rewards - rewards.mean(1, keepdim=True)
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)  # the mean of equal numbers may differ from them by an ulp
    return (centred / (rewards.std(1, keepdim=True) + epsilon)).masked_fill(equal, 0.0)


def broadcast_to_tokens(advantages: torch.Tensor, response_lengths: torch.Tensor) -> torch.Tensor:
    """Gives every response token its sample's advantage.

    Shapes: advantages [rows], response_lengths [rows] int64 -> [sum(response_lengths)], rows back to back.
    """
    return advantages.repeat_interleave(response_lengths)
