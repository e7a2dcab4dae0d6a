"""What the documentation and its claims rest on: experiments, their results, and what makes the pages."""
