class SettingsError(ValueError):
    """A setting is unknown or its value is bad. The message is one sentence for a person."""
