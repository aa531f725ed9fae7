"""Where bytes live: the Store seam and its backends. Import a backend through :mod:`msformat.stores.registry`."""
