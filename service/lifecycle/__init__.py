"""Activates model versions and returns to previous ones. Start reading at `controller.Controller.look`."""
