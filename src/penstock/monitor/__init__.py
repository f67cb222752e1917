"""What a broker shows of itself over HTTP: metrics and health."""
