"""The rollout role: tickets in, generated and scored groups out, on an engine that follows the weights."""
