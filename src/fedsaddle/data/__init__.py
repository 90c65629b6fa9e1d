"""Real data, and how it is divided among clients."""
