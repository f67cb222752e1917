"""One broker process: how it starts, serves, begins again and stops."""
