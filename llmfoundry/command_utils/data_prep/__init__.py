"""Commands that turn text into MDS shards."""
