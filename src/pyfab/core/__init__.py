"""Domains, endpoints, regions, queues: the interface of the C++ core in Python, one file for each kind of object."""
