"""The routes of the HTTP API. Each module contains a group of routes with their request and answer models."""
