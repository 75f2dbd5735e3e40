"""The parts of an address vector: handles, formats of addresses, authorization keys, insertion."""
