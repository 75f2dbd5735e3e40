"""The validation suite that ``pyfab validate`` runs: what any link promises, between this process and a peer anywhere."""
