"""The pages about a run and about a comparison, made from the records in their folders and from nothing else.

`reader` reads a run folder, and `page` makes its page, also while the run goes on. `comparison` has the page of a
comparison, and `runs` the list of a folder of runs.

What a page says: the `overview`, the `summary`, the `clusters` and `client_details`. `references` compares
a run with others. The `catalogue` has the words for decisions, events, measures and charts. `words` is how names and
numbers are written, and `template` puts all into one file.

Charts: `charts` has them, of parts from `drawing`, and `export` writes them as files.
"""

from fedstrata.report.page import build, follow

__all__ = ["build", "follow"]
