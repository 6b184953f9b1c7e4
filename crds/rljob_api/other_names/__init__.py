"""Names of other trainers and what they are here: tables and hints. Pure; imports no spec."""
