"""The vectors of one version, searched while they change."""
