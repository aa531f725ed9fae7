"""Pages of HTML about one dump or two: a self-contained file, or served on loopback for dumps too big for that."""
