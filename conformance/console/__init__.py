"""The web console, driven in Chromium as a user would."""
