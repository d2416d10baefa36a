"""The version of Simile, for the distribution, the commands and the API."""

VERSION = "1.0.0"
DISTRIBUTION = "simile-search"  # `simile` on the package index is another project.
