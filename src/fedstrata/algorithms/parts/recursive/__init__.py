"""What the algorithms have in common that split clusters again and again: CFL, LayerCFL, HiCFL."""
