"""Which PyBox this is, as PEP 440 writes it. The build replaces this file by the version
that it builds; a test holds this one to the Makefile's."""

__version__ = "0.1.0.dev0"
