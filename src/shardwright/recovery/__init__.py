"""Recovery without PyTorch: who is there, which shards survive where, and what moves from where to where."""
