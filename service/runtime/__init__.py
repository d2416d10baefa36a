"""Starts, monitors and stops the service process. Start reading at `runtime.Runtime`."""
