"""Search rules for the service and the evaluation: keyword search, passages, and fusion of rankings."""
