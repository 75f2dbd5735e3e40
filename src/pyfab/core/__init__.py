"""Domains, endpoints, regions, queues: the interface of the C++ core in Python, one file a kind of object."""
