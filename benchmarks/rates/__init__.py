"""The laboratory: what the theorems about CDMA claim, measured. See `__main__` and docs/theory.md."""
