"""The scout: in which layer clients fall apart."""
