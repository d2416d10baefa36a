"""The rules of a search that serving and judging share: words, passages, fusion."""
