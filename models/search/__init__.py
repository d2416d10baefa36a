"""Rules of search that the service and the evaluation share: keyword search, passages, fusion."""
