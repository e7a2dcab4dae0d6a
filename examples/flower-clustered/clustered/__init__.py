"""Different models for different sites: an app of Flower whose server groups the sites by their updates."""
