"""What training of transformers' models costs: memory of log-probs, and tokens a second beside plain loops."""
