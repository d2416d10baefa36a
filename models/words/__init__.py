"""Messages for people: command lines, validation errors, progress and suggestions."""
