"""The exhibits of the four papers: their tables, figures and headline numbers, made again with this library.

``python -m experiments.papers.reproduce --list`` names them. `exhibit` says what an exhibit is; each paper has a file
of exhibits here, beside the experiment files that they share.
"""
