"""Every column that a row may have: its name in the queue, its dtype, and over what it runs.

For all that carry, read or write rows. Which task writes and which reads a column is `pipeline`'s. Imports no torch.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class Over(Enum):
    """What a column has one element for."""

    ROW = "row"
    TOKENS = "tokens"
    """Prompt and response."""
    RESPONSE = "response"
    """The tokens after the prompt, those that a tool wrote included."""
    SPANS = "spans"
    """Runs of tokens that one version of the weights made."""
    PACK = "pack"
    """Bytes that hold several things of one row."""


class Column(StrEnum):
    """One column; as a string it is its name in the queue, which never changes its meaning."""

    over: Over
    dtype: str
    """As torch and numpy name it."""
    inner: tuple[int, ...]
    """Shape of one element."""

    TOKENS = "tokens", Over.TOKENS, "int32"
    RESPONSE_LENGTHS = "response_lengths", Over.ROW, "int64"
    LOSS_MASKS = "loss_masks", Over.RESPONSE, "uint8"
    """1: the model drew the token."""
    ROLLOUT_LOG_PROBS = "rollout_log_probs", Over.RESPONSE, "float32"
    """The engine's, under the versions that made the tokens."""
    REWARDS = "rewards", Over.ROW, "float32"
    VALID = "valid", Over.ROW, "uint8"
    """0 where the sample could not be scored, so that nothing may be learnt from it."""
    BASELINES = "baselines", Over.ROW, "float32"
    """The reward of the greedy answer to the row's prompt; only in jobs whose estimator measures against it."""
    FINISH_REASONS = "finish_reasons", Over.ROW, "uint8"
    """As in `engines.base.FINISH_CODES`."""
    VERSION_SPANS = "version_spans", Over.SPANS, "int32", (4,)
    """Lineage and version of the weight, first token of the response and the one after the last."""
    EXTRA = "extra", Over.PACK, "uint8"
    """Metrics, facts and named arrays of the row, as `tensors.packed` packs them; none has a readiness of its own."""
    LOG_PROBS = "log_probs", Over.RESPONSE, "float32"
    """Of the proximal policy: version r for rows of `train_r`."""
    REF_LOG_PROBS = "ref_log_probs", Over.RESPONSE, "float32"
    ADVANTAGES = "advantages", Over.RESPONSE, "float32"
    ROW_ADVANTAGES = "row_advantages", Over.ROW, "float32"
    """The advantage of all tokens of the row, where they have one: the trainer's rank makes ADVANTAGES of it."""
    HAS_VARIANCE = "has_variance", Over.ROW, "uint8"
    """0 where the valid rewards of the row's group are all equal; only in jobs that leave such groups out."""
    REWARD_KL = "reward_kl", Over.ROW, "float32"
    """Sum over the row's drawn tokens of the KL of which a multiple was taken off their rewards, 0 where the row is not
    valid; only in jobs with such a penalty."""
    VALUES = "values", Over.RESPONSE, "float32"
    RETURNS = "returns", Over.RESPONSE, "float32"
    IS_CURRENT = "is_current", Over.RESPONSE, "uint8"
    """1: the version that is trained made the token. Made by the trainer's rank of the spans, never stored."""

    def __new__(cls, name: str, over: Over, dtype: str, inner: tuple[int, ...] = ()) -> Column:
        """A member is its name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.over, member.dtype, member.inner = over, dtype, inner
        return member
