"""Activates model versions and rolls back. Start reading at `controller.Controller.look`."""
