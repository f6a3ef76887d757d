"""What the figures say: cost, energy, audit, claims."""
