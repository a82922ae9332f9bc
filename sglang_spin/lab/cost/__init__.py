"""A model of the time of one decode step, with and without SPIN. A model, not a measurement."""
