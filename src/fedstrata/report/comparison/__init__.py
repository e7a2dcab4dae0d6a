"""Comparisons of several runs: `folder` is what their folder holds, `words` has its sentences, `page` its page."""
