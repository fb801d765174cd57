"""Policy search: what each cell's bytes buy, and how to share them out."""
