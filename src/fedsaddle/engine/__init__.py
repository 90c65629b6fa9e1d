"""The loops: rounds over lanes, and the ways to ask clients."""
