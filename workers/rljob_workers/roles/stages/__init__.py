"""What the roles compute: generate, log-probs, advantages, train. A stage never waits for work and never beats."""
