"""The application, its health, and how a service starts and stops."""
