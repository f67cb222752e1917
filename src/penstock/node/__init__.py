"""One broker process: how it starts, serves, begins again as a new incarnation, and stops."""
