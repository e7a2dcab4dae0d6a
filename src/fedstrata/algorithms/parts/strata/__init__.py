"""What only Strata does: it tries what was proven, settles who belongs where, and remembers."""
