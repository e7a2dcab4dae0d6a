"""What the algorithms have in common that cluster once, by snapshots or signatures of the clients."""
