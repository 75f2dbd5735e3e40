"""Data shipped with the package; ``digits.txt`` names the source and the licence of ``digits.npz``."""
