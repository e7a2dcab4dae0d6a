"""What runs of many clients, nodes and machines take."""
