"""The edge of the service: connections, limits, deadlines, access and error answers around each request."""
