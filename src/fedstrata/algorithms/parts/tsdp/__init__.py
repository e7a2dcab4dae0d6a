"""The parts of FedTSDP."""
