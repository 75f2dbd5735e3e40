"""Samples that arrive while training runs: from ranks that append them to ranks that use them, each once."""
