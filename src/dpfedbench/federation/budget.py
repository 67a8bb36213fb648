"""What a private run may spend, and when it has to stop."""
