"""Truncated importance sampling: what is done about tokens that another policy than the proximal one has drawn."""

import torch


def truncated_weights(log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Weights that multiply the policy-gradient loss of each token; never a gradient through them.

    Formula: w = min(exp(log_probs - rollout_log_probs), cap). `log_probs` are the proximal policy's (the trainer's
    arithmetic, version r for rows of `train_r`), `rollout_log_probs` the behaviour policy's (the engine's arithmetic,
    whatever versions drew the tokens). So the weight covers staleness and the mismatch of engine and trainer, and the
    clipped ratio new / log_probs covers the optimizer steps within the rollout.
    Shapes: [tokens] -> [tokens].
    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    https://fengyao.notion.site/off-policy-rl; truncation: Ionides 2008, JCGS 17(2).
    """
    return torch.exp(log_probs - rollout_log_probs).clamp(max=cap).detach()
