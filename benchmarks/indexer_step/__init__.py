"""The indexer's part of a decode step, dense and with SPIN: what each costs."""
